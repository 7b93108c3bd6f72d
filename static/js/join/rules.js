// The times and conditions at which a contributor's tab may work, as set by the contributor. The module is pure: it
// uses neither the page nor the hub.
import { bytes } from "../format.js";
import { say } from "../words/join.js";

// The default rules. mains: work only on mains; hidden, idle: work only in one of the chosen conditions. from, to:
// whole hours of the day, "" for the whole day. data_gb: the limit per day, "" for none.
export const defaults = { mains: false, hidden: false, idle: false, from: "", to: "", data_gb: "", awake: true };

const isHour = (text) => /^(?:1?\d|2[0-3])$/.test(text);

// Converts kept rules.
export function rulesOf(kept) {
  const from = kept && typeof kept === "object" ? kept : {};
  const out = { ...defaults };
  for (const name of ["mains", "hidden", "idle", "awake"]) if (typeof from[name] === "boolean") out[name] = from[name];
  for (const name of ["from", "to"]) if (isHour(from[name])) out[name] = from[name];
  if (typeof from.data_gb === "string") out.data_gb = from.data_gb;
  return out;
}

// Returns a sentence for the user if `text` is invalid for the field, else "".
export function capProblem(text) {
  const trimmed = text.trim();
  const is_good = trimmed === "" || (/^(\d+\.?\d*|\.\d+)$/.test(trimmed) && Number(trimmed) > 0);
  return is_good ? "" : say("bad_data");
}

function isWithin(hour, from, to) {
  if (from === to) return true;
  // In the last case, the hours span midnight.
  return from < to ? hour >= from && hour < to : hour >= from || hour < to;
}

// Returns the reason why this tab waits now, as a sentence; "" if it may work. facts: {on_mains: true, false, or null
// if unknown; is_hidden; is_idle: the computer is not in use, null if unknown; hour; bytes_today}.
export function reasonToWait(rules, { on_mains, is_hidden, is_idle, hour, bytes_today }) {
  if (rules.mains && on_mains === false) return say("on_battery");
  if (rules.from !== "" && rules.to !== "" && !isWithin(hour, Number(rules.from), Number(rules.to))) {
    return say("outside_hours", rules.from, rules.to);
  }
  const cap = capProblem(rules.data_gb) === "" ? Number(rules.data_gb.trim()) * 1e9 : 0;
  if (cap > 0 && bytes_today >= cap) return say("data_used", bytes(cap));
  return asideWords(rules, is_hidden, is_idle);
}

// Returns the reason to wait if the work would disturb the contributor at the computer, else "".
function asideWords({ hidden, idle }, is_hidden, is_idle) {
  if ((!hidden && !idle) || (hidden && is_hidden) || (idle && is_idle)) return "";
  if (!idle) return say("in_front");
  if (is_idle === null) return say("idle_unknown");
  return say(hidden ? "in_front_and_used" : "computer_used");
}

// Returns the count of bytes that were transferred on `day`, plus `more`. `kept`: the stored count, possibly of another
// day.
export function usedOn(day, kept, more) {
  const is_today = kept?.day === day && kept.bytes >= 0;
  return { day, bytes: (is_today ? kept.bytes : 0) + more };
}
