// The card "When it may work": its fields, the browser's knowledge of this machine, and the resulting reason to wait.
import { element, make } from "../dom.js";
import { bytes } from "../format.js";
import { capProblem, reasonToWait, rulesOf, usedOn } from "./rules.js";
import { recall, remember } from "../storage.js";
import { say } from "../words/join.js";

const kept_as = "moex-rules";
const data_kept_as = "moex-data";
const idle_after_ms = 60000;      // shortest idle time that browsers report

function parsed(name) {
  try { return JSON.parse(recall(name, "null")); } catch { return null; }
}
const today = () => new Date().toLocaleDateString("sv");      // year-month-day, local time

// Decides whether the tab may work now, and shows the rules.
export class Conditions {
  // `onChange()` is called when a rule, or a condition that a rule depends on, has changed.
  constructor(onChange) {
    this.onChange = onChange;
    this.rules = rulesOf(parsed(kept_as));
    this.data = usedOn(today(), parsed(data_kept_as), 0);
    this.total = 0;             // newest count of bytes from the worker
    this.battery = null;
    this.idle = null;           // an IdleDetector; null without permission
    if (!globalThis.IdleDetector) this.rules.idle = false;
    this.fill();
    this.listen();
    this.findBattery();
    this.findIdle();
  }

  fill() {
    for (const name of ["from", "to"]) {
      const hours = Array.from({ length: 24 }, (_, hour) => make("option", "", `${hour}:00`, { value: String(hour) }));
      element(name).replaceChildren(make("option", "", say("any"), { value: "" }), ...hours);
    }
    for (const [name, value] of Object.entries(this.rules)) {
      if (typeof value === "boolean") element(name).checked = value;
      else element(name).value = value;
    }
    const line = navigator.connection;
    element("metered").hidden = !(line?.saveData || line?.type === "cellular");
    this.draw();
  }

  listen() {
    for (const name of Object.keys(this.rules)) {
      element(name).addEventListener("input", () => {
        const field = element(name);
        this.rules[name] = field.type === "checkbox" ? field.checked : field.value;
        remember(kept_as, JSON.stringify(this.rules));
        this.draw();
        this.onChange();
      });
    }
    document.addEventListener("visibilitychange", () => this.onChange());
    element("idle").addEventListener("input", () => this.askForIdle());
  }

  // Returns true if the machine runs on mains, null if this browser does not report it.
  onMains() {
    return this.battery ? this.battery.charging : null;
  }

  async findBattery() {
    this.battery = await navigator.getBattery?.().catch(() => null) ?? null;
    element("mains-field").hidden = this.battery === null;      // hide the rule if the browser reports no battery
    this.battery?.addEventListener("chargingchange", () => this.onChange());
    this.onChange();
  }

  // Asks for permission to detect idle time; browsers let the user decide, and only after a click.
  async askForIdle() {
    if (this.rules.idle && !this.idle) await globalThis.IdleDetector.requestPermission().catch(() => {});
    await this.findIdle();
  }

  async findIdle() {
    element("idle-field").hidden = !globalThis.IdleDetector;
    if (!this.rules.idle || this.idle) return;
    const detector = new globalThis.IdleDetector();
    detector.addEventListener("change", () => this.onChange());
    if (await detector.start({ threshold: idle_after_ms }).then(() => true, () => false)) this.idle = detector;
    this.onChange();
  }
  isIdle() {
    return this.idle ? this.idle.userState === "idle" || this.idle.screenState === "locked" : null;
  }

  draw() {
    const problem = capProblem(this.rules.data_gb);
    element("data_gb-problem").textContent = problem;
    element("data_gb").setAttribute("aria-invalid", String(problem !== ""));
    const words = say("used_today", bytes(this.data.bytes));
    if (element("data-words").textContent !== words) element("data-words").textContent = words;
  }

  // Counts the bytes of the day. `total`: the bytes that the worker has received, sent and downloaded since it began.
  count(total) {
    // A lower total comes from a new worker, which counts from 0.
    const more = total >= this.total ? total - this.total : total;
    this.total = total;
    const day = today();
    if (more === 0 && this.data.day === day) return;
    // The stored count includes the bytes of other tabs.
    this.data = usedOn(day, parsed(data_kept_as) ?? this.data, more);
    remember(data_kept_as, JSON.stringify(this.data));
    this.draw();
  }

  // Returns the reason to wait, or "" if this tab may work.
  reason() {
    return reasonToWait(this.rules, {
      on_mains: this.onMains(),
      is_hidden: document.visibilityState === "hidden",
      is_idle: this.isIdle(),
      hour: new Date().getHours(),
      bytes_today: this.data.day === today() ? this.data.bytes : 0,
    });
  }
}
