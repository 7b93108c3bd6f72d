// Where the time of a round goes, as far as workers tell. Pure.
import { fine } from "../format.js";

// `split`: of /api/status; the empty string while nobody told.
export function splitWords({ groups, group_ms, worker_ms, gpu_ms } = {}) {
  if (!groups) return "";
  const wire = `${fine(Math.max(0, group_ms - worker_ms))} in the hub's queue and on the wire`;
  const program = `${fine(Math.max(0, worker_ms - gpu_ms))} in the contributor's program`;
  const inside = gpu_ms > 0 ? `${program}, ${fine(gpu_ms)} on its GPU` : `${fine(worker_ms)} at the contributor`;
  return `Of a round's ${fine(group_ms)}: ${wire}, ${inside}.`;
}
