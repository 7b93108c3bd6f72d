// Where the time of a round goes, as far as workers tell. Pure.
import { fine } from "../format.js";
import { say } from "../tables/status.js";

// `split`: of /api/status; the empty string while nobody told.
export function splitWords({ groups, group_ms, worker_ms, gpu_ms } = {}) {
  if (!groups) return "";
  const wire = say("split_wire", fine(Math.max(0, group_ms - worker_ms)));
  const program = say("split_program", fine(Math.max(0, worker_ms - gpu_ms)));
  const inside = gpu_ms > 0 ? say("split_gpu", program, fine(gpu_ms)) : say("split_inside", fine(worker_ms));
  return say("split", fine(group_ms), wire, inside);
}
