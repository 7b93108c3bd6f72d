// Cards for answers that are not prose: a tool call with its arguments and its result, and JSON of a schema.
import { copyText, button, make } from "../dom.js";
import { say } from "../words/chat.js";

const depth_max = 6;      // values that are nested deeper are shown as JSON

// Shows a JSON value as rows of names and values.
function nodeOf(value, depth = 0) {
  if (value === null || typeof value !== "object") {
    return make("span", `value ${value === null ? "null" : typeof value}`, String(value));
  }
  const entries = Array.isArray(value) ? value.map((one, i) => [String(i + 1), one]) : Object.entries(value);
  if (entries.length === 0 || depth >= depth_max) return make("span", "value", JSON.stringify(value));

  const list = make("dl", Array.isArray(value) ? "items" : "members");
  for (const [name, one] of entries) {
    const place = make("dd");
    place.append(nodeOf(one, depth + 1));
    list.append(make("dt", "", name), place);
  }
  return list;
}

function parsed(text) {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return null;      // the JSON was cut off, or is not complete yet
  }
}

// A card with a head and a copy button. show(text, is_whole) shows complete JSON as rows, and any other text as it is.
export class JsonCard {
  constructor(title) {
    this.root = make("section", "card-json", "", { "aria-label": title });
    this.text = "";
    const head = make("div", "code-head");
    const copy = button("quiet small", say("copy"), () => copyText(this.text, copy));
    head.append(make("span", "", title), copy);
    this.body = make("div", "card-body");
    this.root.append(head, this.body);
  }

  show(text, is_whole) {
    this.text = text;
    const whole = is_whole ? parsed(text) : null;
    if (whole) {
      this.raw = null;
      this.body.replaceChildren(nodeOf(whole.value));
      return;
    }
    if (!this.raw) {
      this.raw = make("pre", "", "", { tabindex: "0" });
      this.body.replaceChildren(this.raw);
    }
    this.raw.textContent = text;
  }
}

// Shows the tool calls of an answer. `onResults()` is called when the user has entered the results of all calls.
export class CallCards {
  constructor(onResults) {
    this.root = make("div", "calls");
    this.onResults = onResults;
    this.cards = [];
  }

  show(calls, is_running) {
    if (calls.length < this.cards.length) {
      this.cards = [];
      this.root.replaceChildren();
    }
    calls.forEach((call, i) => {
      if (!call) return;
      if (!this.cards[i]) {
        this.cards[i] = new JsonCard(say("calls_tool", call.name));
        this.root.append(this.cards[i].root);
      }
      this.cards[i].show(call.arguments, !is_running);
    });
    this.form?.remove();
    this.form = null;
    if (!is_running && calls.length > 0) this.showResults(calls);
  }

  // Shows the results of the tools, or fields in which the user enters them: this page runs no tools itself.
  showResults(calls) {
    if (calls.every(({ result }) => typeof result === "string")) {
      calls.forEach(({ result }, i) => {
        if (this.cards[i].root.querySelector(".result")) return;
        const given = make("div", "result");
        given.append(make("span", "muted small", say("result")), make("pre", "", result, { tabindex: "0" }));
        this.cards[i].root.append(given);
      });
      return;
    }
    this.form = make("form", "results");
    const fields = calls.map(({ name }) => {
      const label = make("label", "field", "");
      const field = make("textarea", "", "", { rows: "2" });
      label.append(make("span", "", say("result_of", name)), field);
      this.form.append(label);
      return field;
    });
    this.form.append(make("button", "button small when-idle", say("send_results"), { type: "submit" }));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      calls.forEach((call, i) => { call.result = fields[i].value; });
      this.onResults();
    });
    this.root.append(this.form);
  }
}
