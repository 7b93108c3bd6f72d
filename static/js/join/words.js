// What the join page says of this tab, its memory and the hub. Pure.
import { bytes, count, fine, whole } from "../format.js";

// phase: [pill's colour, its words, what is said below when the worker gives no detail]
export const phases = {
  none: ["", "not started", "One button, and this tab is part of the model."],
  starting: ["warn", "starting", "Looking for the GPU and preparing its programs."],
  connecting: ["warn", "connecting", "Reaching the hub."],
  downloading: ["warn", "downloading", "Fetching the experts that this tab will hold."],
  warming: ["warn", "checking", "Checking the GPU's results against known answers."],
  serving: ["good", "serving", "This tab answers for its experts."],
  paused: ["", "paused", "The weights stay here; nothing is computed until you resume."],
  offline: ["bad", "offline", "The hub does not answer. This page tries again by itself."],
  gpu_lost: ["bad", "GPU lost", "The browser took the GPU away. This page starts again by itself."],
  refused: ["bad", "refused", "The hub refused this tab."],
  failed: ["bad", "cannot serve", "This browser or GPU cannot serve."],
  stopped: ["", "stopped", "This tab no longer takes part. Thank you."],
};

export const hasEnded = (phase) => ["stopped", "refused", "failed"].includes(phase);

export function whyOffline(status, { is_online, now_ms }) {
  if (!is_online) return "This device has no network. The page goes on by itself when it has one again.";
  const seconds = Math.ceil((status.retry_at - now_ms) / 1000);
  return `${status.detail || phases.offline[2]}${seconds > 1 ? ` Next try in ${seconds} s.` : ""}`;
}

// {kind, state, detail} for a status; `idle` when nobody has asked for a while, `waits` why the owner's rules pause it.
export function stageWords(status, { idle, is_online, now_ms, waits = "" }) {
  const [kind, words, sentence] = phases[status.phase] ?? ["", status.phase, ""];
  if (status.phase === "paused" && waits) return { kind: "warn", state: "waiting", detail: waits };
  if (idle) return { kind, state: "ready", detail: "The hub has no work just now. Leave the tab open." };
  if (status.phase === "offline") return { kind, state: words, detail: whyOffline(status, { is_online, now_ms }) };
  if (status.phase === "serving" && onProcessor(status.adapter) && !status.detail) {
    return { kind, state: words, detail: `${sentence} It is computing on the processor, on one thread.` };
  }
  return { kind, state: words, detail: status.detail || sentence };
}

// What this tab holds of the whole model, once it holds something. `units` as /health counts them.
export function shareWords(status, units) {
  if (status.units_ready === 0 || !(units > 0)) return "";
  const share = (100 * status.units_ready) / units;
  const percent = share < 1 ? share.toFixed(1) : Math.round(share);
  return `This tab holds ${whole.format(status.units_ready)} of the model's ${count(units, "expert")}: ${percent} %.`;
}

// What a limit is good for, from the experts that are here already; nothing before the first.
export function budgetWords(status, budget_bytes, units) {
  if (!(status?.units_ready > 0) || !(status.weights_bytes > 0)) {
    return "More memory holds more of the model. A change takes effect at once, and what fits stays.";
  }
  const room = Math.floor(budget_bytes / (status.weights_bytes / status.units_ready));
  if (units > 0 && room >= units) return "Room for the whole model.";
  return `Room for about ${count(room, "expert")}${units > 0 ? ` of ${whole.format(units)}` : ""}.`;
}

export function memoryWords(status) {
  const in_use = status.device?.buffer_bytes || status.weights_bytes || 0;
  if (in_use === 0) return "–";
  // Weights and calls in flight come out of the same limit.
  return `${bytes(in_use)} of ${bytes(status.budget_bytes)}: ${bytes(status.weights_bytes)} of experts, `
    + "the rest for calls and experts to come";
}

// The hub in one sentence, before anything is started: {model} of /api/info, {units, covered, workers} of /health.
// `lend`: what lendWords() says more exactly need not be said here.
export function hubWords(info, health, lend = null) {
  if (!info?.model || !health) return "";
  const workers = health.workers ?? 0;
  const who = workers === 0
    ? "Nobody lends it a GPU yet" : `${count(workers, "contributor is", "contributors are")} here`;
  const missing = lend ? 0 : (health.units ?? 0) - (health.covered ?? 0);
  const need = missing > 0 ? `, and ${count(missing, "expert has", "experts have")} nobody` : "";
  return `This hub serves ${info.model}. ${who}${need}.`;
}

const onProcessor = (adapter) => adapter?.backend === "cpu";

// `why` there is no GPU, for a tab that computes on the processor.
export function gpuWords(adapter, why = "") {
  if (onProcessor(adapter)) return `none: computing on the processor (${adapter.architecture}). ${why}`.trim();
  if (!adapter?.vendor && !adapter?.description) return "";
  const name = [adapter.vendor, adapter.architecture, adapter.description].filter(Boolean).join(" ");
  return `${name}${adapter.software ? " (software: slow, for tests)" : ""}`;
}

// Beside the median of rounds.
export function roundWords({ gpu_us_p50 }) {
  return gpu_us_p50 > 0 ? `per round, median; ${fine(gpu_us_p50 / 1000)} on the GPU` : "per round, median";
}
