// Texts of the chat page: the pool of contributors, how an answer ended, which workers computed it, errors. The module
// is pure: it uses neither the page nor the hub.
import { bytes, ms, tenths, whole } from "../format.js";
import { say } from "../words/chat.js";
import { stateOf } from "./refine.js";

// ---- the pool of contributors; `health` is the reply of /health, or null when the hub does not answer

// Returns {kind, text, short, welcome}: the colour and text of the label that shows the pool, a short text for a phone,
// and the sentence under the greeting. `needs_key`: the hub asks for a key that the user has not entered.
export function poolWords(health, needs_key = false) {
  const needs = needs_key && health && { kind: "warn", text: say("key_needed"), short: say("key_needed_short") };
  return { ...(needs || labelOf(health)), welcome: needs ? say("key_welcome") : welcomeWords(health) };
}

function labelOf(health) {
  if (!health) return { kind: "bad", text: say("hub_offline"), short: say("offline") };
  const workers = health.workers ?? 0;
  const is_ok = health.status === "ok";
  if (health.status === "draining") return { kind: "warn", text: say("hub_stops"), short: say("stops") };
  if (health.status === "loading") return { kind: "warn", text: say("hub_loads"), short: say("loads") };
  if (workers > 0) {
    return { kind: is_ok ? "good" : "warn", text: say("contributors", workers), short: whole.format(workers) };
  }
  if (is_ok) return { kind: "good", text: say("hub_only"), short: say("hub") };
  return { kind: "warn", text: say("nobody_here"), short: say("nobody") };
}

// Returns the sentence under the greeting, which agrees with the label of the pool.
function welcomeWords(health) {
  if (!health) return say("back_soon");
  const workers = health.workers ?? 0;
  const kept = health.prompts_kept_hours > 0 ? ` ${say("kept_on_disk", health.prompts_kept_hours)}` : "";
  const rest = `${say("secret")}${kept}`;
  if (health.status === "ok" && workers === 0) return `${say("hub_computes")} ${rest}`;
  if (workers === 0) return `${say("nobody_yet")} ${rest}`;
  return `${say("people_lend", workers)} ${rest}`;
}

// Returns the banner {text, wants_join}, or null if no banner is needed. `device_answers`: this device answers without
// the hub.
export function bannerWords(health, http_status, device_answers = false) {
  const plain = (text) => ({ text, wants_join: false });
  if (!health) return plain(say(device_answers ? "either_away" : "no_answer"));
  if (health.status === "draining") return plain(say("shutting_down"));
  if (health.status === "loading") return plain(say("loading"));
  if (http_status === 200) return null;

  const { units, covered } = health;
  return { text: units > 0 ? say("missing", units - covered, units) : say("parts_missing"), wants_join: true };
}

// The phases of a device (chat/device.js) in which the model is on its way.
const coming_phases = ["looking", "fetching", "warming"];

// Returns the same as poolWords() while answers are computed on this device: what is true before the model is loaded,
// meanwhile, and afterwards. No question goes to the hub, whatever the device's state.
export function placeWords({ phase, processor }) {
  const words = (kind, name) => ({
    kind, text: say(`device_pill${name}`), short: say("device_pill_short"), welcome: say(`device_welcome${name}`),
  });
  if (phase === "ready") return words("good", processor ? "_processor" : "");
  return words("warn", coming_phases.includes(phase) ? "_coming" : "_missing");
}

// Returns the same as poolWords() where the hub answers, too: before the device is ready, the hub answers alone.
// `place`: "either" or "refine"; `hub`: the words of poolWords(); `is_away`: the hub does not answer.
export function bothWords(place, { phase }, hub, is_away) {
  if (phase === "ready" && is_away) {
    const short = say("device_pill_short");
    return { kind: "good", text: say("either_pill_away"), short, welcome: say("either_away") };
  }
  if (phase === "ready") {
    const welcome = `${say(`${place}_welcome`)} ${hub.welcome}`;
    return { kind: "good", text: say(`${place}_pill`), short: say(`${place}_pill_short`), welcome };
  }
  const name = coming_phases.includes(phase) ? "coming" : "missing";
  const welcome = `${say("either_welcome_coming")} ${hub.welcome}`;
  return { kind: hub.kind, text: say(`either_pill_${name}`), short: say("hub"), welcome };
}

// ---- texts about "this device"; its state {phase, ...} is defined in chat/device.js

// `place`: the chosen place of computation.
export function deviceWords({ phase, code, message, ...state }, place = "device") {
  switch (phase) {
    case "looking": return say("device_looking");
    case "asking": {
      const words = say(`${place === "hub" ? "device" : place}_asking`, bytes(state.bytes)) + memoryWords(state.bytes);
      return state.on_processor ? `${words} ${say("device_on_processor")}` : words;
    }
    case "fetching": return say("device_fetching", bytes(state.done_bytes), bytes(state.all_bytes));
    case "warming": return say(state.on_processor ? "device_warming_processor" : "device_warming");
    case "ready": {
      const words = readyWords(state);
      const paged = state.is_paged ? say("device_paged") : "";
      const short_words = state.processor ? "device_short_processor" : "device_short";
      const short = state.is_short ? say(short_words, state.context_tokens) : "";
      return [words, paged, short].filter(Boolean).join(" ");
    }
    case "failed": return deviceTrouble(code, message);
    default: return "";
  }
}

function readyWords({ software, adapter, processor }) {
  if (!processor) return say(software ? "device_ready_software" : "device_ready", adapter);
  const { answer_tokens_per_s: rate = 0 } = processor;
  return say("device_ready_processor", rate > 0 ? tenths.format(rate) : "");
}

// Says whether this device remembers conversations. `choice`: "yes", "no", or "" to ask; `pages`: the last report of
// the kept pages (wasm/page_files.js), or null; `days`: how long pages are kept after their last use; `num`: of how
// many conversations something is kept, or null.
export function rememberingWords(choice, pages, days, num = null) {
  if (choice === "") return say("remember_ask", days);
  if (choice === "no") return say("remember_off");
  if (!pages?.is_on) return say("remember_opening");
  if (pages.trouble === "failed") return say("remember_failed", pages.message.replace(/\.$/, ""));
  const words = say("remember_on", bytes(pages.bytes), bytes(pages.bytes_max), days);
  const more = [num > 0 ? say("remember_count", num) : "", pages.trouble === "full" ? say("remember_full") : ""];
  return [words, ...more].filter(Boolean).join(" ");
}

// The browser reports the device's memory rounded, or not at all, so the result is only a hint before the download.
function memoryWords(model_bytes) {
  const device_bytes = (globalThis.navigator?.deviceMemory ?? Infinity) * 2 ** 30;
  return model_bytes > device_bytes ? ` ${say("device_too_small", bytes(device_bytes))}` : "";
}

function deviceTrouble(code, message) {
  const why = message.replace(/\.$/, "");
  if (code === "no_files" || code === "no_gpu") return say(`device_${code}`);
  if (code === "processor_too_small") return say("device_processor_too_small", why);
  if (code === "no_space") return say("device_no_space", why);
  if (code === "io_error") return say("device_io_error", why);
  if (code === "no_memory" || code === "gpu_too_small") return say("device_no_memory", why);
  if (code === "unauthorized") return say("key_wanted");
  if (code === "other_hub") return say("device_other_hub", why);
  if (code === "device_lost") return say("device_lost", why);
  return say("device_failed", why);
}

// ---- texts about an answer that has ended

export function factsOf(message) {
  const facts = message.facts ?? {};
  const out = [];
  if (facts.tokens > 1 && facts.tokens_per_s > 0) out.push(say("rate", tenths.format(facts.tokens_per_s)));
  if (facts.ttft_ms > 0) {
    const seconds = facts.ttft_ms / 1000;
    out.push(say("first_token", seconds < 1 ? ms(Math.round(facts.ttft_ms)) : say("seconds", tenths.format(seconds))));
  }

  if (facts.tokens_per_step > 1) out.push(say("a_step", tenths.format(facts.tokens_per_step)));

  if (["device", "handed", "drafted"].includes(facts.place)) return out;
  if (facts.is_told) {
    out.push(say("answered_by", facts.workers ?? 0));
    if (facts.workers > 0 && facts.calls_local > 0) out.push(say("with_help"));
    const checked = checkWords(facts);
    if (checked) out.push(checked);
    if (facts.lossy_way) out.push(say("lossy", facts.lossy_way, lossWords(facts.perplexity_excess)));
  } else if (facts.tokens > 0 && facts.workers_seen_max === 0) {
    out.push(say("answered_by", 0));
  } else if (facts.tokens > 0 && facts.workers_seen_max > 0) {
    out.push(say("were_serving", facts.workers_seen_min, facts.workers_seen_max));
  }
  return out;
}

const lossWords = (excess) => (excess > 0 ? say("perplexity", tenths.format(100 * excess)) : say("not_measured"));

// Describes how far the contributors' part was checked: recomputed by the hub before use, computed by workers with a
// good record, or not checked.
function checkWords({ verified = 0, proven = 0, unchecked = 0, doubted = 0 }) {
  if (doubted > 0) return say("gave_false", doubted);
  const all = verified + proven + unchecked;
  if (all === 0) return "";
  const percent = (part) => Math.min(99, Math.max(1, Math.round((100 * part) / all)));
  const share = (part) => (part === all ? say("all") : `${percent(part)} %`);
  if (unchecked > 0) return say("unchecked", share(unchecked));
  if (verified > 0) return say("computed_again", share(verified));
  return say("with_record");
}

// Describes how an answer ended early, or returns null for a complete answer: {text, kind, action}; the action is
// "continue", "retry" or "".
export function endWords(message) {
  const { end } = message;
  const has_calls = message.calls?.length > 0;
  const is_empty = !message.content && !message.reasoning && !has_calls;
  if (has_calls && end?.reason === "stop") return null;
  // An answer in JSON that was cut off cannot be continued.
  const has_form = has_calls || message.is_form;
  const action = is_empty ? "retry" : has_form ? "" : "continue";
  const plain = (text) => ({ text, kind: "", action });
  if (!end && is_empty) return plain(say("left_empty"));
  if (!end) return plain(say("left"));
  const tokens = end.limit ?? 0;

  switch (end.reason) {
    case "stopped":
      return plain(say(is_empty ? "stopped_empty" : "stopped"));
    case "length":
      return plain(say("longest", tokens));
    case "context":
      return { text: say("context_full", tokens), kind: "", action: "" };
    case "failed":
      return { text: end.words, kind: "bad", action: end.is_final ? "" : action };
    default:
      return is_empty ? { text: say("nothing_said"), kind: "", action: "retry" } : null;
  }
}

// Says how far the answer `better` is that is offered in the place of a draft: {text, kind, action}; the action is
// "show", "retry" or "".
export function offerWords(better, is_running) {
  const state = stateOf(better, is_running);
  const why = state === "failed" ? ` ${better.end.words}` : "";
  const action = { coming: "", ready: "show", failed: better.end?.is_final ? "" : "retry", left: "retry" }[state];
  return { text: `${say(`refine_${state}`)}${why}`, kind: state === "failed" ? "bad" : "", action };
}

export function thoughtWords(message) {
  if (message.thinking) return say("thinking");
  const seconds = message.reasoning_ms / 1000;
  if (seconds <= 0) return say("thoughts");
  if (seconds < 0.1) return say("thought_moment");
  if (seconds >= 90) return say("thought_for", say("minutes", Math.round(seconds / 60)));
  return say("thought_for", say("seconds", seconds < 9.95 ? tenths.format(seconds) : Math.round(seconds)));
}

// ---- errors in words for the user; `error`: {status, code, message}, with status 0 if the connection broke
export function errorWords(error) {
  if (error.code === "device_off") return say("device_not_ready");
  if (error.code?.startsWith("device_")) return deviceTrouble(error.code.slice("device_".length), error.message);
  if (error.status === 0) return say("line_broke");
  if (error.status === 401) return say("key_wanted");
  if (error.status === 403) return say("key_wrong");
  if (error.code === "context_length_exceeded") return say("too_long");
  if (error.code === "queue_full") return say("queue_full");
  if (error.status === 429) return say("too_often");
  if (error.status === 413) return say("question_too_long");
  if (error.code === "cancelled") return say("shutting_down");
  if (error.code === "unavailable" && /loading/i.test(error.message)) return say("still_loads");
  if (error.code === "unavailable" || error.code === "timeout") return say("nobody_answered");
  if (error.status >= 500) return say("hub_failed", error.message.replace(/\.$/, ""));
  return error.message;
}

// True for an error that the same question meets again: trying again cannot help.
export const isFinal = ({ code, status }) => code === "context_length_exceeded" || status === 413;

export const unreachable = () => say("unreachable");
