// What the chat page says: the pool, how an answer ended, who computed it, what went wrong. Pure.
import { count, ms, whole } from "../format.js";

// ---- who is there, from /health: {status, workers} or null when the hub does not answer

// {kind, text, short}: the pill's colour, its words, and what fits on a phone.
export function poolWords(health) {
  if (!health) return { kind: "bad", text: "hub offline", short: "offline" };
  const workers = health.workers ?? 0;
  const is_ok = health.status === "ok";
  if (health.status === "draining") return { kind: "warn", text: "hub stops", short: "stops" };
  if (health.status === "loading") return { kind: "warn", text: "hub loads", short: "loads" };
  if (workers > 0) {
    return { kind: is_ok ? "good" : "warn", text: count(workers, "contributor"), short: whole.format(workers) };
  }
  if (is_ok) return { kind: "good", text: "hub only", short: "hub" };
  return { kind: "warn", text: "nobody here", short: "nobody" };
}

// The sentence under the greeting: true to the pill beside it.
export function welcomeWords(health) {
  const secret = "Contributors can learn something of what you write, so share nothing secret.";
  const here = "Answers come from browser tabs that people lend to this hub";
  if (!health) return "This page goes on by itself when the hub is back.";
  const workers = health.workers ?? 0;
  if (health.status === "ok" && workers === 0) {
    return `Right now the hub computes the answers itself; browsers that are lent to it take over. ${secret}`;
  }
  if (workers === 0) return `${here}; nobody is here yet. ${secret}`;
  const who = workers === 1 ? "One person lends" : `${whole.format(workers)} people lend`;
  return `${who} a browser tab to this hub, and the answers are computed there. ${secret}`;
}

// {text, wants_join}, or null when nothing need be said.
export function bannerWords(health, http_status) {
  const plain = (text) => ({ text, wants_join: false });
  if (!health) return plain("The hub does not answer. This page goes on by itself when it is back.");
  if (health.status === "draining") return plain("The hub is shutting down.");
  if (health.status === "loading") return plain("The hub loads its model. This page goes on by itself.");
  if (http_status === 200) return null;

  const missing = health.units - health.covered;
  const parts = health.units > 0
    ? `${whole.format(missing)} of the model's ${count(health.units, "expert")} ${missing === 1 ? "has" : "have"}`
    : "Parts of the model have";
  return { text: `${parts} nobody to compute them, so answers must wait.`, wants_join: true };
}

// ---- an answer that has ended

export function factsOf(message) {
  const facts = message.facts ?? {};
  const out = [];
  if (facts.tokens > 1 && facts.tokens_per_s > 0) out.push(`${facts.tokens_per_s.toFixed(1)} tokens/s`);
  if (facts.ttft_ms > 0) {
    const wait = facts.ttft_ms < 1000 ? ms(Math.round(facts.ttft_ms)) : `${(facts.ttft_ms / 1000).toFixed(1)} s`;
    out.push(`first token after ${wait}`);
  }

  if (facts.is_told) {
    const who = facts.workers > 0 ? count(facts.workers, "contributor") : "the hub itself";
    out.push(`answered by ${who}`);
    if (facts.workers > 0 && facts.calls_local > 0) out.push("with help of the hub");
    const checked = checkWords(facts);
    if (checked) out.push(checked);
  } else if (facts.tokens > 0 && facts.workers_seen_max === 0) {
    out.push("answered by the hub itself");
  } else if (facts.tokens > 0 && facts.workers_seen_max > 0) {
    const [low, high] = [facts.workers_seen_min, facts.workers_seen_max];
    const who = low === high ? count(high, "contributor") : `${low} to ${high} contributors`;
    out.push(`${who} ${high === 1 ? "was" : "were"} serving`);
  }
  return out;
}

// What is known of the contributors' part: computed again by the hub before it counted, from those who were found right
// so far, or nobody could tell.
function checkWords({ verified = 0, proven = 0, unchecked = 0, doubted = 0 }) {
  if (doubted > 0) return `${count(doubted, "contributor")} of it gave false answers, here or elsewhere`;
  const all = verified + proven + unchecked;
  if (all === 0) return "";
  const share = (part) => (part === all ? "all" : `${Math.min(99, Math.max(1, Math.round((100 * part) / all)))} %`);
  if (unchecked > 0) return `${share(unchecked)} of it unchecked`;
  if (verified > 0) return `${share(verified)} of it computed again`;
  return "from contributors with a record";
}

// How an answer ended when it did not end by itself, null for a whole one: {text, kind, action}, where the action is
// "continue", "retry" or "".
export function endWords(message) {
  const { end } = message;
  const is_empty = !message.content && !message.reasoning;
  const action = is_empty ? "retry" : "continue";
  const plain = (text) => ({ text, kind: "", action });
  if (!end && is_empty) return plain("The page was left before the first word.");
  if (!end) return plain("The page was left before the answer was whole.");
  const tokens = end.limit ? count(end.limit, "token") : "";

  switch (end.reason) {
    case "stopped":
      return plain(is_empty ? "You stopped it before the first word." : "You stopped this answer.");
    case "length":
      return plain(`It reached the longest answer that you set${tokens && `, ${tokens}`}.`);
    case "context":
      return {
        text: `The model's context is full${tokens && ` (${tokens}, your questions included)`}. Go on in a new chat.`,
        kind: "", action: "",
      };
    case "failed":
      return { text: end.words, kind: "bad", action };
    default:
      return is_empty ? { text: "The model had nothing to say.", kind: "", action: "retry" } : null;
  }
}

export function thoughtWords(message) {
  if (message.thinking) return "Thinking…";
  const seconds = message.reasoning_ms / 1000;
  if (seconds <= 0) return "Thoughts";
  if (seconds < 0.1) return "Thought for a moment";
  if (seconds < 9.95) return `Thought for ${seconds.toFixed(1)} s`;
  if (seconds < 90) return `Thought for ${Math.round(seconds)} s`;
  return `Thought for ${Math.round(seconds / 60)} min`;
}

// ---- what went wrong, in words of the person who asked. `error`: {status, code, message}; status 0: the line broke.
export function errorWords(error) {
  if (error.status === 0) return "The line to the hub broke in mid-answer.";
  if (error.status === 401) return "This hub asks for an API key. Set one in the settings.";
  if (error.status === 403) return "This key may not ask for answers. Set another one in the settings.";
  if (error.code === "context_length_exceeded") {
    return "This conversation no longer fits the model's context. Begin a new chat, or shorten the question.";
  }
  if (error.code === "queue_full") return "Too many people ask at once. Try again in a moment.";
  if (error.status === 429) return "You asked too often in a short time. Try again in a moment.";
  if (error.status === 413) return "The question is too long for this hub.";
  if (error.code === "cancelled") return "The hub is shutting down.";
  if (error.code === "unavailable" && /loading/i.test(error.message)) {
    return "The hub still loads its model. Try again in a moment.";
  }
  if (error.code === "unavailable" || error.code === "timeout") {
    return "Nobody answered for a part of the model: too few contributors are here. Try again, or lend a GPU.";
  }
  if (error.status >= 500) return `The hub failed: ${error.message}.`.replace(/\.\.$/, ".");
  return error.message;
}

export const unreachable = "The hub cannot be reached. Is it still running?";
