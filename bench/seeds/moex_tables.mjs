#!/usr/bin/env node
// Computes the tables of "MoEx" (000) from its own formulas, beside the printed figures.
//   node bench/seeds/moex_tables.mjs [--sigma S] [--k K] [--workers W]        [0.5 8 2]
// CSV: table, row, quantity, paper, computed, how. Units are milliseconds, GB of 1e9 bytes, and percent.
//   Table 1  the time of the slowest of K experts, each of which takes the fastest of h answers; an answer's time is
//            log-normal (median 20 ms, sigma S). For comparison, W workers each stall with all their experts at once:
//            the time of the slowest of W.
//   Table 3  the time of a token: 48 layers, each with attention (1.5 ms), readback (0.2 ms) and one round. A round
//            takes the RTT once, as both directions together are one RTT, and the expert's time (0.7 ms). The paper
//            counts the RTT twice and names no distribution for h = 2 and 3; here the round is log-normal with that
//            median and sigma S, the slowest of K and the fastest of h.
//   eq. 3    bytes of experts a worker, for the paper's shape and for Qwen3-30B-A3B's own; INT4 as stored here, with a
//            scale and a zero (f16) for each 128 weights: 4.25 bits a weight.
// The integrals are compared with a closed form first, the mean of one log-normal. The program exits with 1 if their
// error exceeds 1e-6.
// example: node bench/seeds/moex_tables.mjs
import { readFlags } from "../flags.mjs";

const options = { sigma: "0.5", k: "8", workers: "2" };
readFlags("seeds/moex_tables", options);
const sigma = Number(options.sigma);
const k = Number(options.k);
const workers = Number(options.workers);
const layers = 48;

// Returns the standard normal distribution function: a series near 0, a continued fraction for large arguments.
function normalCdf(x) {
  if (Math.abs(x) < 3) {
    let term = x;
    let sum = x;
    for (let i = 3; Math.abs(term) > 1e-17; i += 2) sum += term *= x * x / i;
    return 0.5 + sum * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
  }
  const far = Math.abs(x);
  let fraction = far;
  for (let i = 60; i > 0; i -= 1) fraction = far + i / fraction;
  const tail = Math.exp(-far * far / 2) / Math.sqrt(2 * Math.PI) / fraction;
  return x > 0 ? 1 - tail : tail;
}

// Returns the mean time of the slowest of `slowest` calls, each of which takes the time of the fastest of `fastest`
// answers: the integral of 1 - F by Simpson's rule over the logarithm of time.
function meanOf(median, slowest, fastest) {
  const steps = 4000;
  const [from, to] = [-12, 12];
  const width = (to - from) / steps;
  const later = (z) => 1 - (1 - (1 - normalCdf(z)) ** fastest) ** slowest;
  let sum = median * Math.exp(sigma * from);          // times before the integral begins: no answer has arrived yet
  for (let i = 0; i <= steps; i += 1) {
    const z = from + i * width;
    const weight = i === 0 || i === steps ? 1 : i % 2 === 1 ? 4 : 2;
    sum += weight * width / 3 * later(z) * median * sigma * Math.exp(sigma * z);
  }
  return sum;
}

const closed = 20 * Math.exp(sigma * sigma / 2);
if (Math.abs(meanOf(20, 1, 1) / closed - 1) > 1e-6) {
  console.error(`moex_tables: the integral gives ${meanOf(20, 1, 1)}, the closed form ${closed}`);
  process.exit(1);
}

const row = (...cells) => console.log(cells.join(","));
row("table", "row", "quantity", "paper", "computed", "how");

const paper1 = [51.2, 28.7, 23.1, 20.4];
const saved1 = ["", 44.0, 54.9, 60.2];
const ours1 = [1, 2, 3, 4].map((h) => meanOf(20, k, h));
ours1.forEach((ms, i) => {
  row("Table 1", `h=${i + 1}`, "ms", paper1[i], ms.toFixed(2), `eq. 18 with k=${k}`);
  if (i > 0) row("Table 1", `h=${i + 1}`, "saved_%", saved1[i], (100 * (1 - ms / ours1[0])).toFixed(1), "of h=1");
  row("Table 1", `h=${i + 1}`, "ms", "", meanOf(20, workers, i + 1).toFixed(2), `${workers} workers that stall as one`);
});

const networks = [["LAN", 0.5, [163, 150, 146]], ["WiFi", 2, [307, 250, 234]], ["WAN city", 10, [1075, 922, 874]],
  ["WAN cross", 50, [4915, 4762, 4714]]];
for (const [name, rtt, paper] of networks) {
  row("Table 3", `${name} h=1`, "ms", paper[0], (layers * (1.5 + 0.7 + 0.2 + rtt)).toFixed(1), "eq. 10 with one RTT");
  paper.forEach((ms, i) => row("Table 3", `${name} h=${i + 1}`, "ms", ms,
    (layers * (1.5 + 0.2 + meanOf(rtt + 0.7, k, i + 1))).toFixed(1), `the round log-normal with sigma ${sigma}`));
}

const workerGb = (moe_layers, hidden, inner, bits) => 2 * 128 / 16 * moe_layers * 3 * hidden * inner * bits / 8 / 1e9;
row("eq. 3", "the paper's shape", "GB", 9.2, workerGb(46, 4096, 2048, 4).toFixed(2), "4 bits");
row("eq. 3", "the paper's shape", "GB", "", workerGb(46, 4096, 2048, 4.25).toFixed(2), "4.25 bits");
row("eq. 3", "Qwen3-30B-A3B", "GB", "", workerGb(48, 2048, 768, 4.25).toFixed(2), "4.25 bits");
