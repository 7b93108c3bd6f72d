// Texts about contributors that compute several layers whole. The module is pure: it uses neither the page nor the hub.
import { bytes, number } from "../format.js";
import { say } from "../words/status.js";

// Returns the text for one worker of /api/status: the layers that it computes whole; the empty string if it computes
// none.
export function layersWords(worker, spans) {
  const held = spans?.held.find((one) => one.worker === worker.id);
  if (!held) return "";
  const words = say("computes_layers", held.first_layer, held.end_layer - 1);
  return held.standby ? `${words} (${say("standby")})` : words;
}

// Returns the sentence about workers that compute no layers any more; the empty string if there are none.
export function setAsideWords({ spans }) {
  return spans?.set_aside > 0 ? say("span_set_aside", spans.set_aside) : "";
}

// Returns the sentence about all of them; the empty string if no worker computes layers whole. `replicas` has a list of
// experts for each layer, which is empty for a layer without experts. Bytes are a mean over the rows that were sent.
export function spanWords({ spans, replicas }) {
  const used = spans?.held.filter((one) => one.used) ?? [];
  if (used.length === 0) return "";
  const layers = used.reduce((sum, { first_layer, end_layer }) => sum + end_layer - first_layer, 0);
  const all = replicas.filter((experts) => experts.length > 0).length;
  const { step_rows, step_bytes, answer_rows, answer_bytes, kv_bytes } = spans;
  const per_row = (sum, rows) => bytes(rows > 0 ? sum / rows : 0);
  return say("span_trips", number.format(used.length + all - layers), number.format(all))
    + " " + say("span_bytes", per_row(step_bytes, step_rows), per_row(answer_bytes, answer_rows), bytes(kv_bytes));
}
