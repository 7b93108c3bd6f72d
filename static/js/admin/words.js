// Texts of the admin page about keys, workers and bans. The module is pure: it uses neither the page nor the hub.
import { compact, span, whole } from "../format.js";
import { say, word } from "../words/admin.js";

const day = (time_s) => new Date(time_s * 1000).toISOString().slice(0, 10);

const key_kinds = { open: "good", expired: "", revoked: "" };
export const keyState = (state) => [key_kinds[state] ?? "bad", word("key", state)];

// Returns when a key ends or has ended, such as "until 2027-01-31 (30 days)", "for ever", "since 2026-11-22".
export function termWords(key, now_s) {
  if (key.state === "revoked") return say("ended", day(key.revoked_s));
  if (key.expires_s === 0) return say("for_ever");
  if (key.state === "expired") return say("ended", day(key.expires_s));
  const left_s = key.expires_s - now_s;
  const left = left_s < 172800 ? span(left_s) : say("days_left", Math.round(left_s / 86400));
  return say("until_in", day(key.expires_s), left);
}

export const limitWords = ({ tokens_per_minute }) =>
  (tokens_per_minute > 0 ? say("per_min", whole.format(tokens_per_minute)) : say("none"));

// Returns the number of tokens that a key has used, in prompts and answers together.
export const usedWords = (use) => compact.format(use.prompt_tokens + use.answer_tokens);

// Sorts keys: open keys first, then ended keys; within each group, the latest key first.
export function inOrder(keys) {
  const rank = ({ state }) => (state === "open" ? 0 : 1);
  return [...keys].sort((a, b) => rank(a) - rank(b) || b.created_s - a.created_s);
}

// Returns true if a key has a button to revoke it. The join key of the hub's own link has none: a new link ends it.
export const mayRevoke = (key) => key.state === "open" && !(key.role === "join" && key.name === "link");

const workerKinds = {
  active: "good", reserve: "", loading: "warn", connecting: "warn", draining: "warn", unhealthy: "bad",
};

// Returns the pills (small labels) of a worker as [colour kind, word]: its state, and the operator's orders.
export function workerPills(worker) {
  const state = [workerKinds[worker.state] ?? "", word("worker", worker.state)];
  const drained = ["warn", say(worker.units_assigned > 0 ? "worker_draining" : "worker_drained")];
  return [worker.drained ? drained : state, ...(worker.pinned ? [["", say("worker_pinned")]] : [])];
}

export const workerName = ({ nickname, id }) => nickname || `#${id}`;

// Returns the name of a banned worker: its nickname, or the beginning of its key if it has no nickname.
export const bannedName = ({ nickname, worker_key }) => nickname || worker_key.slice(0, 12);

export const banWords = (ban) => (ban.is_over ? say("over") : say("until", day(ban.until_s)));

// Returns the path of a QR code's dark modules in an SVG of rows.length + 8 units: four light units on each side.
export function qrPath(rows) {
  const quiet = 4;
  return rows.flatMap((row, y) => [...row.matchAll(/1+/g)]
    .map(({ index, 0: run }) => `M${index + quiet} ${y + quiet}h${run.length}v1h-${run.length}z`)).join("");
}
