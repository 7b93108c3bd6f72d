// Texts about experts that contributors load on demand: where they are stored, how many were prefetched, how long calls
// waited. The module is pure: it uses neither the page nor the hub.
import { bytes, fine, whole } from "../format.js";
import { say } from "../words/status.js";

// Returns the text for one worker of /api/status; the empty string if all of its experts are resident.
export function tierWords({ ready_in: { store, memory, slot } }) {
  if (store + memory === 0) return "";
  return say("tiers_short", whole.format(slot), ...(memory > 0 ? [whole.format(memory)] : [null]), whole.format(store));
}

// Returns the sentences for all workers; the empty string if no worker loads on demand. Misses are per token that the
// hub computed.
export function onDemandWords({ calls: { on_demand, load_window }, engine, workers }) {
  const tiers = { store: 0, memory: 0, slot: 0 };
  for (const { ready_in } of workers)
    if (ready_in.store + ready_in.memory > 0) for (const tier in tiers) tiers[tier] += ready_in[tier];

  const sentences = [];
  if (tiers.store + tiers.memory > 0) sentences.push(say("tiers", tiers.slot, tiers.memory, tiers.store));
  if (on_demand.asked > 0) {
    const tokens = Math.max(1, engine.prompt_tokens + engine.generated_tokens - engine.cached_tokens);
    sentences.push(say("on_demand", on_demand.hits / on_demand.asked, on_demand.misses / tokens));
  }
  const { foreseen, lead_ms, late, expired, wasted_bytes } = on_demand;
  if (foreseen + late + expired > 0)
    sentences.push(say("hinted", foreseen, fine(lead_ms), late, expired, bytes(wasted_bytes)));
  if (on_demand.loads > 0) {
    const most = load_window.most_ms > 0 ? fine(load_window.most_ms) : null;
    sentences.push(say("waited", fine(on_demand.load_ms), most, load_window.groups));
  }
  return sentences.join(" ");
}
