// Converts the reply of /api/history to lines for the charts. The module is pure: it uses neither the page nor the hub.
import { say } from "../words/status.js";

// Returns {times, tokens, first_token, p50, p99, p999, workers, coverage}: one entry per step of the span, null if the
// hub did not run or has no such figure; coverage in per cent.
export function historySeries({ now_s, span_s, step_s, points }) {
  const last = now_s - (now_s % step_s);
  const length = span_s / step_s + 1;
  const times = Array.from({ length }, (_, i) => last - (length - 1 - i) * step_s);
  const by_time = new Map(points.map((point) => [point.time_s, point]));
  const line = (tell) => times.map((time) => (by_time.has(time) ? tell(by_time.get(time)) : null));
  return {
    times,
    tokens: line((point) => point.tokens_per_s),
    first_token: line((point) => point.first_token_ms),
    p50: line((point) => point.call_p50_ms),
    p99: line((point) => point.call_p99_ms),
    p999: line((point) => point.call_p999_ms),
    workers: line((point) => point.workers),
    coverage: line((point) => (point.units > 0 ? (100 * point.covered) / point.units : null)),
  };
}

// Describes the charts for screen readers.
export function historyWords({ points, step_s }) {
  if (points.length === 0) return say("no_history");
  const tokens = points.map((point) => point.tokens_per_s);
  const mean = tokens.reduce((sum, one) => sum + one, 0) / points.length;
  const most = Math.max(...points.map((point) => point.workers));
  const partly = points.filter((point) => point.covered < point.units).length;
  const gaps = partly > 0 ? say("gaps", partly, points.length) : say("no_gaps");
  return say("history_words", step_s / 60, mean, most, gaps);
}

// Returns the indices of the values that have no value beside them; null is a missing value.
export function lonePoints(values) {
  const has = (i) => values[i] !== null && values[i] !== undefined;
  return [...values.keys()].filter((i) => has(i) && !has(i - 1) && !has(i + 1));
}
