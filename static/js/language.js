// The language of a page, and its texts: tables of sentences by key (words/*.js), one for each language. Until a page
// calls speakIn(), and in pages that never call it, the language is English.
import { recall, remember } from "./storage.js";

export const languages = { en: "English", de: "Deutsch" };
const tags = { en: { number: "en", date: "en-GB" }, de: { number: "de", date: "de" } };
const kept_as = "moex-language";
let spoken = "en";

export const language = () => spoken;
export const numberLocale = () => tags[spoken].number;
export const dateLocale = () => tags[spoken].date;

// Makes the function say("key", ...values) for a table {en: {key: words}, de: {...}}; `words` is a text, or a function
// of the values.
export const sayFrom = (table) => (key, ...values) => {
  const words = table[spoken][key];
  return typeof words === "function" ? words(...values) : words;
};

// Returns the language that the user chose (`kept`), else the browser's first language that the pages support.
export function languageFor(kept, wishes) {
  const known = [kept, ...wishes.map((wish) => wish.toLowerCase().split("-")[0])];
  return known.find((name) => Object.hasOwn(languages, name)) ?? "en";
}

// Sets the language without a page; tests and speakIn() call it.
export function setLanguage(name) { spoken = name; }

// ---- in a page: data-say="key" is an element's text, data-say-NAME="key" its attribute

const attributes = ["aria-label", "placeholder", "title"];

function translate(say) {
  document.documentElement.lang = spoken;
  for (const node of document.querySelectorAll("[data-say]")) node.textContent = say(node.dataset.say);
  for (const name of attributes) {
    for (const node of document.querySelectorAll(`[data-say-${name}]`)) {
      node.setAttribute(name, say(node.getAttribute(`data-say-${name}`)));
    }
  }
}

// Call once, before any text is shown. `choice`: the select element for the language. `onChange()` is called after a
// choice, when the document has been translated already.
export function speakIn(table, choice, onChange) {
  const say = sayFrom(table);
  spoken = languageFor(recall(kept_as, ""), navigator.languages ?? [navigator.language ?? ""]);
  choice.replaceChildren(...Object.entries(languages).map(([name, word]) => new Option(word, name)));
  choice.value = spoken;
  translate(say);
  choice.addEventListener("change", () => {
    spoken = choice.value;
    remember(kept_as, spoken);
    translate(say);
    onChange();
  });
}
