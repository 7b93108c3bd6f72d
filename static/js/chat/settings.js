// The chat's settings: defaults, valid values of the fields, and the fields of an API request. The module is pure: it
// uses neither the page nor the hub.
import { say } from "../words/chat.js";

export const defaults = {
  place: "hub",      // place where answers are computed: "hub", "device", "either" of them, or "refine"
  quality: "quickest",      // with "either", where the hub has a better model: "quickest" or "best"
  system: "", temperature: 0.8, top_p: 0.95, max_tokens: "", seed: "", top_k: "", min_p: "", presence_penalty: "",
  frequency_penalty: "", repetition_penalty: "", stop_words: "", schema: "", tools: "", tool_choice: "auto",
  logit_bias: "", grammar: "", reasoning_effort: "", n: "",
};
export const places = ["hub", "device", "either", "refine"];
export const qualities = ["quickest", "best"];
export const efforts = ["", "none", "low", "medium", "high"];

const within = (value, low, high, otherwise) => (
  typeof value === "number" && value >= low && value <= high ? value : otherwise);

// Converts stored settings, which this version or an older version of the page has written.
export function settingsOf(kept) {
  const from = kept && typeof kept === "object" ? kept : {};
  const text = (value) => (typeof value === "number" || typeof value === "string" ? String(value) : "");
  return {
    place: places.includes(from.place) ? from.place : defaults.place,
    quality: qualities.includes(from.quality) ? from.quality : defaults.quality,
    system: typeof from.system === "string" ? from.system : defaults.system,
    temperature: within(from.temperature, 0, 2, defaults.temperature),
    top_p: within(from.top_p, 0.05, 1, defaults.top_p),
    // A stored number was set by the slider of an older page, which had no position for "up to the context".
    max_tokens: typeof from.max_tokens === "string" ? from.max_tokens : defaults.max_tokens,
    ...Object.fromEntries(["seed", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
      "stop_words", "schema", "tools", "logit_bias", "grammar", "n"].map((name) => [name, text(from[name])])),
    tool_choice: from.tool_choice === "required" ? "required" : defaults.tool_choice,
    reasoning_effort: efforts.includes(from.reasoning_effort) ? from.reasoning_effort : defaults.reasoning_effort,
  };
}

// The settings that hold a number as text; an empty text means the default. A seed above 2^53 would be rounded in JSON.
const numbers = {
  n: { low: 1, high: 8, is_whole: true },
  max_tokens: { low: 1, high: 1e9, is_whole: true },
  seed: { low: 0, high: Number.MAX_SAFE_INTEGER, is_whole: true },
  top_k: { low: 0, high: 1e9, is_whole: true },
  min_p: { low: 0, high: 1 },
  presence_penalty: { low: -2, high: 2 },
  frequency_penalty: { low: -2, high: 2 },
  repetition_penalty: { low: 0.01, high: 100 },
};

const stops_max = 4;
const linesOf = (text) => text.split("\n").filter((line) => line !== "");

function fromText(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// Parses tools to the API's format, and adds {type, function} if it is missing. Returns null if `text` has no tools.
function toolsOf(text) {
  const given = fromText(text);
  if (!Array.isArray(given) || given.length === 0) return null;
  const tools = given.map((one) => (one?.function ? one : { type: "function", function: one }));
  return tools.every((tool) => typeof tool.function?.name === "string" && tool.function.name !== "") ? tools : null;
}
function schemaOf(text) {
  const schema = fromText(text);
  return schema !== null && typeof schema === "object" && !Array.isArray(schema) ? schema : null;
}
// Parses the setting logit_bias: a list or an object of pairs (text or token id, bias). Returns null if `text` has
// none.
function biasOf(text) {
  const given = fromText(text);
  if (given === null || typeof given !== "object") return null;
  const is_bias = (value) => value === false || (typeof value === "number" && value >= -100 && value <= 100);
  const is_named = (name) => (typeof name === "string" && name !== "") || (Number.isInteger(name) && name >= 0);
  const pairs = Array.isArray(given) ? given : Object.entries(given);
  const holds = pairs.every((pair) => Array.isArray(pair) && pair.length === 2 && is_named(pair[0])
    && is_bias(pair[1]));
  return holds && pairs.length > 0 ? given : null;
}
const texts = {
  stop_words: (text) => linesOf(text).length <= stops_max,
  schema: (text) => schemaOf(text) !== null,
  tools: (text) => toolsOf(text) !== null,
  logit_bias: (text) => biasOf(text) !== null,
  grammar: (text) => /(^|\n)\s*root\s*::=/.test(text),
};

// Returns a sentence for the user if `text` is invalid for the field `name`, else "".
export function problemOf(name, text) {
  const field = numbers[name];
  const trimmed = text.trim();
  if (trimmed === "") return "";
  if (texts[name]) return texts[name](text) ? "" : say(`bad_${name}`);
  if (!field) return "";
  const is_number = field.is_whole ? /^\d+$/.test(trimmed) : /^-?(\d+\.?\d*|\.\d+)$/.test(trimmed);
  const value = Number(trimmed);
  const is_within = is_number && value >= field.low && value <= field.high;
  return is_within && (!field.is_whole || Number.isSafeInteger(value)) ? "" : say(`bad_${name}`);
}

// Returns the token limit of an answer; null if only the context limits it.
export function lengthLimit(settings) {
  return settings.max_tokens.trim() === "" ? null : Number(settings.max_tokens.trim());
}

// Returns the number of answers to a question that the settings ask for.
export function numAnswers(settings) {
  const text = settings.n.trim();
  return problemOf("n", text) === "" ? Number(text) || 1 : 1;
}

// Returns the request fields for sampling, as set in the settings, for one answer.
export function samplingOf(settings) {
  const out = { temperature: settings.temperature, top_p: settings.top_p };
  for (const name of Object.keys(numbers)) {
    if (name === "n") continue;      // the caller sets n: it must be 1 for a continued answer
    const text = settings[name].trim();
    if (text !== "") out[name] = Number(text);
  }
  const bias = biasOf(settings.logit_bias);
  if (bias) out.logit_bias = bias;
  if (settings.reasoning_effort !== "") out.reasoning_effort = settings.reasoning_effort;
  return out;
}

// Returns the request fields for the end and the form of an answer. Invalid values are left out; a schema takes
// precedence over a grammar.
export function formOf(settings) {
  const out = {};
  const stop = linesOf(settings.stop_words);
  const schema = schemaOf(settings.schema), tools = toolsOf(settings.tools);
  if (stop.length > 0) out.stop = stop;
  if (schema) out.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  else if (texts.grammar(settings.grammar)) out.grammar = settings.grammar;
  if (tools) Object.assign(out, { tools, tool_choice: settings.tool_choice });
  return out;
}

// ---- presets: system prompts that the user can select

export const presets = () => [
  { name: say("preset_none"), text: "" },
  ...["brief", "teacher", "proofreader", "storyteller"].map(
    (name) => ({ name: say(`preset_${name}`), text: say(`preset_${name}_text`) })),
];

// Converts the stored presets of the user, and drops invalid entries.
export function presetsOf(kept) {
  if (!Array.isArray(kept)) return [];
  return kept.filter((one) => typeof one?.name === "string" && typeof one.text === "string" && one.name && one.text)
    .map(({ name, text }) => ({ name, text }));
}

// Returns the presets `own` with one more preset, named by the first words of `text`. If `text` is already listed,
// returns `own`.
export function withPreset(own, text) {
  const trimmed = text.trim();
  if (trimmed === "" || [...presets(), ...own].some((one) => one.text === trimmed)) return own;
  const line = trimmed.split("\n")[0].replace(/\s+/g, " ");
  return [...own, { name: line.length > 32 ? `${line.slice(0, 31).trimEnd()}…` : line, text: trimmed }];
}
