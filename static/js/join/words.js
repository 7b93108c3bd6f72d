// Texts of the join page about this tab, its memory and the hub. The module is pure: it uses neither the page nor the
// hub.
import { bytes, fine, span, tenths, whole } from "../format.js";
import { detailWords, say } from "../words/join.js";

// The colour of the state label in each phase. The table of texts has the phase's name, and the sentence to show if the
// worker sends none.
const kinds = {
  none: "", starting: "warn", connecting: "warn", downloading: "warn", warming: "warn", serving: "good", paused: "",
  offline: "bad", gpu_lost: "bad", refused: "bad", failed: "bad", stopped: "",
};
export const phases = Object.keys(kinds);

export const hasEnded = (phase) => ["stopped", "refused", "failed"].includes(phase);

export function whyOffline(status, { is_online, now_ms }) {
  if (!is_online) return say("no_network");
  const seconds = Math.ceil((status.retry_at - now_ms) / 1000);
  const why = detailWords(status.detail) || say("offline_detail");
  return seconds > 1 ? `${why} ${say("next_try", seconds)}` : why;
}

// Returns {kind, state, detail} for a status. `idle`: no request has arrived for a while; `waits`: the reason why the
// contributor's rules pause the tab; `in_reserve`: the hub is faster without this tab just now.
export function stageWords(status, { idle, is_online, now_ms, waits = "", in_reserve = false }) {
  const kind = kinds[status.phase] ?? "";
  const words = say(status.phase) ?? status.phase;
  const sentence = say(`${status.phase}_detail`) ?? "";
  if (status.phase === "paused" && waits) return { kind: "warn", state: say("waiting"), detail: waits };
  if (in_reserve && status.phase === "serving") {
    return { kind: "", state: say("reserve"), detail: say("reserve_detail") };
  }
  if (idle) return { kind, state: say("ready"), detail: say("ready_detail") };
  if (status.phase === "offline") return { kind, state: words, detail: whyOffline(status, { is_online, now_ms }) };
  if (status.phase === "serving" && onProcessor(status.adapter) && !status.detail) {
    return { kind, state: words, detail: `${sentence} ${say("on_processor")}` };
  }
  return { kind, state: words, detail: detailWords(status.detail) || sentence };
}

// Describes the download of experts. `pace`: as Arrival returns it, or null.
export function progressWords(status, pace) {
  const words = say("progress", bytes(status.bytes_fetched), bytes(status.bytes_to_fetch), status.units_ready,
    status.units_assigned);
  return pace ? words + say("pace", bytes(pace.bytes_per_s), span(Math.max(1, pace.seconds_left))) : words;
}

// Describes the tab's share of the whole model; "" until the tab holds any of it. `units`: as counted by /health.
export function shareWords(status, units) {
  const words = [];
  if (status.units_ready > 0 && units > 0) {
    const share = (100 * status.units_ready) / units;
    const percent = share < 1 ? tenths.format(share) : Math.round(share);
    words.push(say("share", whole.format(status.units_ready), units, percent));
  }
  const { layers_first: first = 0, layers_end: end = 0 } = status;
  if (end > first) words.push(say("layers", first, end - 1));
  return words.join(" ");
}

// Describes how many experts fit into a memory limit, estimated from the loaded experts; a general hint before the
// first expert is loaded.
export function budgetWords(status, budget_bytes, units) {
  if (!(status?.units_ready > 0) || !(status.weights_bytes > 0)) {
    return say("more_memory");
  }
  const blob_bytes = status.weights_bytes / (status.units_resident || status.units_ready);
  const room = Math.floor(budget_bytes / blob_bytes);
  if (units > 0 && room >= units) return say("room_for_all");
  return say("room", room, units);
}

// Describes the experts that are stored on disk because memory has no room for them. `quota`: the bytes that this
// browser allows the site, 0 if unknown.
export function keepWords(status, keep_bytes, quota) {
  if (keep_bytes === 0) return say("keep_nothing");
  if (quota > 0 && quota < keep_bytes) return say("keep_quota", bytes(quota));
  const beyond = (status?.units_ready ?? 0) - (status?.units_resident ?? 0);
  if (!(beyond > 0)) return say("keep_slower");
  return say("keeps", status.units_ready, status.units_resident, bytes(status.bytes_in_memory ?? 0));
}

// The storage that the browser uses for this site: {usage, quota}, or null if the browser does not report it.
export function storedWords(room) {
  if (!room) return say("unknown");
  return room.quota > 0 ? say("stored_of", bytes(room.usage ?? 0), bytes(room.quota)) : bytes(room.usage ?? 0);
}

// Describes whether the stored experts are safe, and what went wrong with them, by the worker's counts: one sentence
// each. `is_kept`: null before the browser was asked.
export function storeWords(store, is_kept) {
  const said = [];
  if (is_kept !== null) said.push(say(is_kept ? "store_stays" : "store_may_go"));
  if (store?.is_full) said.push(say("store_full", store.unkept));
  if (store?.is_full && store.device_bytes > 0) said.push(say("store_device", bytes(store.device_bytes)));
  if (store?.made_room > 0) said.push(say("store_made_room", store.made_room));
  if (store?.damaged > 0) said.push(say("store_damaged", store.damaged));
  if (store?.gone > 0) said.push(say("store_gone", store.gone));
  if (store?.failed) said.push(say("store_failed", store.failed.replace(/\.$/, "")));
  return said.join(" ");
}

export function memoryWords(status) {
  const in_use = status.device?.buffer_bytes || status.weights_bytes || 0;
  if (in_use === 0) return "–";
  // The memory limit covers the weights and the buffers of calls in flight.
  return say("memory_parts", bytes(in_use), bytes(status.budget_bytes), bytes(status.weights_bytes));
}

// Describes the hub in one sentence, before the tab is started: {model} of /api/info, {units, covered, workers} of
// /health. `lend`: if set, lendWords() gives more exact figures, and this sentence leaves them out.
export function hubWords(info, health, lend = null) {
  if (!info?.model || !health) return "";
  const missing = lend ? 0 : (health.units ?? 0) - (health.covered ?? 0);
  return say("hub", info.model, health.workers ?? 0, missing);
}

// Describes how fast this device computes, as measured before it joined.
export function speedWords(speed) {
  if (!(speed?.expert_ns > 0)) return "–";
  return say("one_expert", fine(speed.expert_ns / 1e6), whole.format(Math.round(1e9 / speed.expert_ns)));
}

// Returns true if the hub refused the token of this tab's link: only another link helps.
export const wantsLink = ({ phase, detail }) => phase === "refused" && /fresh join link\.$/.test(detail ?? "");

const onProcessor = (adapter) => adapter?.backend === "cpu";

// Describes the adapter. `why`: the reason why a tab that computes on the processor uses no GPU.
export function gpuWords(adapter, why = "") {
  if (onProcessor(adapter)) return `${say("cpu_only", adapter.architecture)} ${detailWords(why)}`.trim();
  if (!adapter?.vendor && !adapter?.description) return "";
  const name = [adapter.vendor, adapter.architecture, adapter.description].filter(Boolean).join(" ");
  return `${name}${adapter.software ? say("software_gpu") : ""}`;
}

// Returns the label of the median time of a round.
export function roundWords({ gpu_us_p50 }) {
  return gpu_us_p50 > 0 ? say("round_gpu", fine(gpu_us_p50 / 1000)) : say("round");
}
