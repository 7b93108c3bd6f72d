// When a contributor's tab may work, as its owner set it. Pure.
import { bytes } from "../format.js";
import { say } from "../words/join.js";

// mains: only then; hidden, idle: only in one of those that are chosen. from, to: whole hours of the day, "" for all
// day. data_gb: a day's limit, "" for none.
export const defaults = { mains: false, hidden: false, idle: false, from: "", to: "", data_gb: "", awake: true };

const isHour = (text) => /^(?:1?\d|2[0-3])$/.test(text);

// Whatever was kept, as rules.
export function rulesOf(kept) {
  const from = kept && typeof kept === "object" ? kept : {};
  const out = { ...defaults };
  for (const name of ["mains", "hidden", "idle", "awake"]) if (typeof from[name] === "boolean") out[name] = from[name];
  for (const name of ["from", "to"]) if (isHour(from[name])) out[name] = from[name];
  if (typeof from.data_gb === "string") out.data_gb = from.data_gb;
  return out;
}

// A sentence when the field cannot hold `text`, "" when it can.
export function capProblem(text) {
  const trimmed = text.trim();
  const is_good = trimmed === "" || (/^(\d+\.?\d*|\.\d+)$/.test(trimmed) && Number(trimmed) > 0);
  return is_good ? "" : say("bad_data");
}

function isWithin(hour, from, to) {
  if (from === to) return true;
  return from < to ? hour >= from && hour < to : hour >= from || hour < to;      // the latter over midnight
}

// Why this tab waits now, as a sentence; "" when it may work. facts: {on_mains: true, false or null for unknown,
// is_hidden, is_idle: nobody uses this computer, null for unknown, hour, bytes_today}.
export function reasonToWait(rules, { on_mains, is_hidden, is_idle, hour, bytes_today }) {
  if (rules.mains && on_mains === false) return say("on_battery");
  if (rules.from !== "" && rules.to !== "" && !isWithin(hour, Number(rules.from), Number(rules.to))) {
    return say("outside_hours", rules.from, rules.to);
  }
  const cap = capProblem(rules.data_gb) === "" ? Number(rules.data_gb.trim()) * 1e9 : 0;
  if (cap > 0 && bytes_today >= cap) return say("data_used", bytes(cap));
  return asideWords(rules, is_hidden, is_idle);
}

// Whether it would be in its owner's way.
function asideWords({ hidden, idle }, is_hidden, is_idle) {
  if ((!hidden && !idle) || (hidden && is_hidden) || (idle && is_idle)) return "";
  if (!idle) return say("in_front");
  if (is_idle === null) return say("idle_unknown");
  return say(hidden ? "in_front_and_used" : "computer_used");
}

// What went over the line on `day`, `more` bytes included; `kept` is of any day.
export function usedOn(day, kept, more) {
  const is_today = kept?.day === day && kept.bytes >= 0;
  return { day, bytes: (is_today ? kept.bytes : 0) + more };
}
