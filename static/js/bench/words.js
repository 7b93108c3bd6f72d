// Texts of the bench page about a row, and the rows in the format of kernel_bench. The module is pure: it uses neither
// the page nor the hub.

import { say } from "../words/bench.js";

// The names of the table's rows: the rows of the published micro-benchmark, and of a whole round.
const same_names = { gate_up: "GateUp", down: "Down" };
export const kernelWords = (what) => same_names[what] ?? say(what) ?? what;
export const shapeWords = (shape) => (
  shape === "qwen3-30b-a3b" ? "Qwen3-30B-A3B: 2048 × 768" : say(`shape_${shape}`) ?? shape);
export const sums = ["total", "round"];

export function us(value) {
  if (!(value > 0)) return "";
  if (value >= 10000) return `${(value / 1000).toFixed(value < 100000 ? 1 : 0)} ms`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} µs`;
}

export function gigabytes(gb_s) {
  if (!(gb_s > 0)) return "–";
  return gb_s >= 1000 ? `${(gb_s / 1000).toFixed(1)} TB/s` : `${gb_s < 10 ? gb_s.toFixed(1) : Math.round(gb_s)} GB/s`;
}

// Returns the bandwidth of a row in per cent of the measured read bandwidth; the empty string if the row reads no
// weights.
export function shareOfBound(row, bound_gb_s) {
  if (!(row.gb_s > 0) || !(bound_gb_s > 0)) return "";
  const percent = 100 * row.gb_s / bound_gb_s;
  return `${percent < 10 ? percent.toFixed(1) : Math.round(percent)} %`;
}

export const rowsWords = (rows) => (rows === 1 ? say("one_row") : say("rows", rows));

const columns = "what,shape,slots,rows,routing,p10_us,p50_us,p99_us,gpu_us,dispatches,mb,gb_s";
// Returns the rows as CSV. This page's round is the `page_round` of kernel_bench: the experts of kernel_bench's `round`
// are stored in larger arenas.
export function csvOf(rows) {
  const figure = (value, digits = 1) => (value > 0 ? value.toFixed(digits) : "");
  const lines = rows.map((row) => [
    row.what === "round" ? "page_round" : row.what, row.shape, "", row.rows || "", row.rows ? "same" : "",
    figure(row.p10_us), figure(row.p50_us), figure(row.p99_us), figure(row.gpu_us), row.dispatches,
    figure(row.mb), figure(row.gb_s, 0),
  ].join(","));
  return `${[columns, ...lines].join("\n")}\n`;
}
