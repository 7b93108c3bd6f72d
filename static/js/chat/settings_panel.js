// The settings next to the thread: fields that report invalid values, code to use the API from a program, and files.
import { root } from "../api.js";
import { copyText, element, make } from "../dom.js";
import { mayCompute } from "./device.js";
import { hasOtherModel } from "./places.js";
import { defaults, presets, presetsOf, problemOf, settingsOf, withPreset } from "./settings.js";
import { snippets } from "./snippets.js";
import { read, recall, remember } from "../storage.js";
import { say } from "../words/chat.js";

const kept_as = "moex-settings";
const presets_kept_as = "moex-presets";

function kept(name) {
  try {
    return JSON.parse(recall(name, "null")) ?? read(name, null);
  } catch { return null; }
}

// Shows the settings, checks their values and stores them.
export class SettingsPanel {
  // `onPlace()` is called when the place of computation changes.
  constructor(onPlace) {
    this.onPlace = onPlace;
    this.settings = settingsOf(kept(kept_as));
    this.own_presets = presetsOf(kept(presets_kept_as));
    this.context_tokens = null;
    for (const name of Object.keys(defaults)) element(name).addEventListener("input", () => this.read(name));
    element("open-settings").addEventListener("click", () => (this.isOpen() ? this.close() : this.open()));
    element("close-settings").addEventListener("click", () => this.close());
    element("reset-settings").addEventListener("click", () => {
      this.settings = { ...defaults };
      this.keep();
      this.draw();
      this.onPlace();
    });
    element("snippet-kind").addEventListener("change", () => this.drawSnippet());
    this.listenToPresets();
    const copy = element("copy-snippet");
    copy.addEventListener("click", () => copyText(element("snippet").textContent, copy));
    this.draw();
  }

  isOpen() { return !element("settings").hidden; }
  open(field = null) {
    element("settings").hidden = false;
    element("open-settings").setAttribute("aria-expanded", "true");
    field?.closest("details")?.setAttribute("open", "");
    (field ?? element("close-settings")).focus();
  }
  // Returns the focus to the gear button if it was inside the panel.
  close() {
    if (!this.isOpen()) return false;
    const was_inside = element("settings").contains(document.activeElement);
    element("settings").hidden = true;
    element("open-settings").setAttribute("aria-expanded", "false");
    if (was_inside) element("open-settings").focus();
    return true;
  }

  keep() { remember(kept_as, JSON.stringify(this.settings)); }
  read(name) {
    this.settings[name] = typeof defaults[name] === "number" ? Number(element(name).value) : element(name).value;
    this.keep();
    this.drawField(name);
    if (name !== "place") return;
    this.drawQuality();
    this.onPlace();
  }

  // Returns the name of the first setting with an invalid value; null if all are valid.
  wrongField() {
    return Object.keys(defaults).find((name) => this.problemOf(name) !== "") ?? null;
  }
  problemOf(name) { return problemOf(name, String(this.settings[name])); }

  // Adapts the fields to the hub's reply to /api/info: {model, context_tokens, api_key_required, ...}.
  know(info) {
    this.info = info;
    this.context_tokens = info.context_tokens ?? null;
    element("key-field").hidden = !info.api_key_required;
    // A place that cannot compute is hidden, unless the user chose it before.
    element("place-field").hidden = !(info.gives_model && mayCompute()) && this.settings.place === "hub";
    element("place-refine").hidden = !hasOtherModel(info) && this.settings.place !== "refine";
    this.drawQuality();
    element("effort-field").hidden = !info.reasoning_effort;
    // Reset the reasoning effort: a model without effort levels would refuse a value that was chosen for another model.
    if (!info.reasoning_effort) this.settings.reasoning_effort = defaults.reasoning_effort;
    this.drawKnown();
  }
  // Answers of one model have one quality, so there is nothing to choose.
  drawQuality() {
    element("quality-field").hidden = !(this.info && hasOtherModel(this.info) && this.settings.place === "either");
  }
  drawKnown() {
    element("max_tokens").placeholder = say("as_context", this.context_tokens);
    this.drawSnippet();
  }

  draw() {
    for (const name of Object.keys(defaults)) {
      element(name).value = this.settings[name];
      this.drawField(name);
    }
  }
  // ---- system prompts

  listenToPresets() {
    element("preset").addEventListener("change", () => {
      const chosen = this.allPresets()[element("preset").value];
      if (!chosen) return;
      element("system").value = chosen.text;
      this.read("system");
    });
    element("save-preset").addEventListener("click", () => {
      this.own_presets = withPreset(this.own_presets, this.settings.system);
      this.keepPresets();
    });
    element("drop-preset").addEventListener("click", () => {
      this.own_presets = this.own_presets.filter(({ text }) => text !== this.settings.system.trim());
      this.keepPresets();
    });
  }
  allPresets() { return [...presets(), ...this.own_presets]; }
  keepPresets() {
    remember(presets_kept_as, JSON.stringify(this.own_presets));
    this.drawPresets();
  }
  // Selects the preset whose text is in the field for the system prompt. The user can store any other text as a preset.
  drawPresets() {
    const text = this.settings.system.trim();
    const all = this.allPresets();
    const at = all.findIndex((one) => one.text === text);
    const options = all.map(({ name }, i) => make("option", "", name, { value: String(i) }));
    if (at < 0) options.push(make("option", "", say("own_words"), { value: "" }));
    element("preset").replaceChildren(...options);
    element("preset").value = at < 0 ? "" : String(at);
    element("save-preset").hidden = at >= 0;
    element("drop-preset").hidden = at < presets().length;
  }

  drawField(name) {
    if (name === "system") this.drawPresets();
    const value = element(`${name}-value`);
    if (value) value.textContent = this.settings[name].toFixed(2);
    const problem = element(`${name}-problem`);
    if (!problem) return;
    problem.textContent = this.problemOf(name);
    element(name).setAttribute("aria-invalid", String(problem.textContent !== ""));
  }
  drawSnippet() {
    const { model = "", api_key_required: needs_key = false } = this.info ?? {};
    const text = snippets[element("snippet-kind").value]({ root, model, needs_key });
    element("snippet").replaceChildren(make("code", "", text));
  }
}
