// Shows which parts take the time of a step and of a round, as far as the engine and the workers report it. The module
// is pure: it uses neither the page nor the hub.
import { fine, whole } from "../format.js";
import { say } from "../words/status.js";

const minute_s = 60;

// Computes the increase of engine.split of /api/status over the last minute, or since the first poll if it was later.
export class LastMinute {
  constructor() {
    this.seen = [];
  }

  // Adds a poll. Returns the increase since the oldest poll of the last minute; null if no step has ended since that
  // poll.
  add(time_s, split) {
    if (this.seen.length > 0 && split.steps < this.seen.at(-1).split.steps) this.seen = [];      // a restarted hub
    this.seen.push({ time_s, split });
    while (this.seen[0].time_s < time_s - minute_s) this.seen.shift();
    const oldest = this.seen[0].split;
    if (split.steps === oldest.steps) return null;
    return Object.fromEntries(Object.keys(split).map((name) => [name, split[name] - oldest[name]]));
  }
}

// Describes the mean times of a step: over the last minute, or since the hub began if `minute` is null. Returns the
// empty string before the first step.
export function stepWords(minute, all) {
  const sums = minute ?? all;
  if (!sums?.steps) return "";
  const mean_ms = (seconds) => (1000 * seconds) / sums.steps;
  const { layers_s, waiting_s, head_s, drawing_s } = sums;
  const parts = [
    [head_s > 0 ? "step_layers" : "step_layers_and_head", layers_s],
    ["step_waiting", waiting_s],
    ["step_head", head_s],
    ["step_drawing", drawing_s],
  ].filter(([, seconds]) => seconds > 0).map(([name, seconds]) => say(name, fine(mean_ms(seconds))));
  const whole_ms = fine(mean_ms(layers_s + waiting_s + head_s + drawing_s));
  return say(minute ? "step_minute" : "step_ever", whole_ms, whole.format(sums.steps), parts.join(", "));
}

// Describes the parts of a round's time, from calls.split of /api/status; the empty string until a worker reports
// times.
export function splitWords({ groups, group_ms, worker_ms, gpu_ms } = {}) {
  if (!groups) return "";
  const wire = say("split_wire", fine(Math.max(0, group_ms - worker_ms)));
  const program = say("split_program", fine(Math.max(0, worker_ms - gpu_ms)));
  const inside = gpu_ms > 0 ? say("split_gpu", program, fine(gpu_ms)) : say("split_inside", fine(worker_ms));
  return say("split", fine(group_ms), wire, inside);
}
