#!/usr/bin/env node
// Computes the figures of "OD-MoE" (002) and "Speculating Experts" (004) that follow from sizes and times alone, beside
// the printed figures.
//   node bench/seeds/on_demand_tables.mjs [--token-ms T] [--round-ms R] [--gb-s G]        [36.06 0.32 none]
// CSV: table, row, quantity, paper, computed, how. GB of 1e9 bytes; a cell is empty where the paper gives no figure.
//   eq. 1    T_load,max = n t_M + (n-1) t_W: the time that a group of workers has to load its layer's experts while
//            n groups alternate, with the hub's t_M and a worker's t_W a layer; and the GB/s that this needs of a
//            worker's link. The paper does not give the split of t_M and t_W, so both extremes are printed.
//   bound    Qwen3-30B-A3B, 8 workers a group, no cache: the largest share of all-resident decoding that remains.
//            T and R are a token's and a round's times with all experts on the GPU (serving_30b.nvidia-h100.csv), G is
//            the link (`kernel_bench --link on`); without G only the needed GB/s are printed. A guess is right for each
//            expert independently; a wrong guess waits for its own load. "own": each worker has such a link; "one":
//            all workers share one link.
//   memory, prefill, Table 2, eq. (1) of 004: the rows explain themselves.
// These are bounds: they assume no contention of host memory, no round trip beyond R, and no late load. Nothing here is
// measured.
// example: node bench/seeds/on_demand_tables.mjs --gb-s 10
import { readFlags } from "../flags.mjs";

const options = { "token-ms": "36.06", "round-ms": "0.32", "gb-s": "" };
readFlags("seeds/on_demand_tables", options);
const tokenMs = Number(options["token-ms"]);
const roundMs = Number(options["round-ms"]);
const link = Number(options["gb-s"]);

const row = (...cells) => console.log(cells.join(","));
row("table", "row", "quantity", "paper", "computed", "how");

// Returns the bytes of one expert, which has the matrices gate, up and down.
const expertBytes = (hidden, inner, bits) => 3 * hidden * inner * bits / 8;
const loadMs = (bytes, gb_s) => bytes / gb_s / 1e6;
const windowMs = (n, hub, worker) => n * hub + (n - 1) * worker;

// ---- paper 002 (OD-MoE): Mixtral-8x7B in f32, 8 workers of 2 experts a layer: 4 groups
const mixtral = expertBytes(4096, 14336, 32);
row("002 eq. 1", "an expert", "MB", "704", (mixtral / 1e6).toFixed(1), "f32");
for (const [what, tok_s] of [["as measured there", 3.6925], ["as fast as all-resident", 4.89]]) {
  const layer = 1000 / tok_s / 32;
  const [least, most] = [windowMs(4, 0, layer), windowMs(4, layer, 0)];
  row("002 eq. 1", what, "T_load_max_ms", "", `${least.toFixed(1)} to ${most.toFixed(1)}`, `n=4; ${tok_s} tok/s`);
  const [fewest, highest] = [mixtral / most / 1e6, mixtral / least / 1e6];
  row("002 eq. 1", what, "GB/s a link", "", `${fewest.toFixed(1)} to ${highest.toFixed(1)}`, "an expert within it");
}
row("002 Table 2", "speed of all-resident", "share", "0.75", (3.6925 / 4.89).toFixed(3), "its averages");
row("002 Table 2", "memory of all-resident", "share", "0.333", (60 / 180).toFixed(3), "60 of 180 GB: f32");
row("002 Table 2", "memory of all-resident", "share", "", (60 / 93).toFixed(3), "60 of 93 GB: bf16");

// ---- paper 002 (OD-MoE): experts of a layer that a prompt uses, chosen uniformly
for (const [name, experts, top_k] of [["Mixtral", 8, 2], ["demo", 16, 4], ["Qwen3-30B-A3B", 128, 8]]) {
  for (const tokens of [16, 64, 128]) {
    const paper = name === "Mixtral" ? { 16: "7.6", 128: "8" }[tokens] ?? "" : "";
    const distinct = experts * (1 - (1 - top_k / experts) ** tokens);
    row("002 prefill", `${name}: ${tokens} tokens`, "experts a layer", paper, distinct.toFixed(2),
      `of ${experts}; uniform`);
  }
}

// ---- the groups of paper 002 (OD-MoE) at the shape of Qwen3-30B-A3B, INT4 with an f16 scale and zero for 128 weights
const [layers, top_k] = [48, 8];
const bytes = expertBytes(2048, 768, 4.25);
const layerMs = tokenMs / layers;
const hubMs = layerMs - roundMs;
row("bound", "an expert", "MB", "", (bytes / 1e6).toFixed(2), "4.25 bits");
row("bound", "one link for all", "GB/s", "", (top_k * bytes / layerMs / 1e6).toFixed(1),
  "8 experts a layer; at full speed");
for (const n of [1, 2, 4, 8]) {
  const allowed = windowMs(n, hubMs, roundMs);
  row("bound", `n=${n}`, "T_load_max_ms", "", allowed.toFixed(2), `t_M=${hubMs.toFixed(2)} t_W=${roundMs}`);
  row("bound", `n=${n}`, "GB/s a link", "", (bytes / allowed / 1e6).toFixed(2), "an expert within it");
  if (!(link > 0)) continue;
  const one = loadMs(bytes, link);
  for (const recall of [1, 0.96, 0.86, 0.79]) {
    const own = Math.max(layerMs, (one + roundMs) / n) + (1 - recall ** top_k) * one;
    const shared = Math.max(layerMs, (top_k * one + roundMs) / n, top_k * one) + top_k * (1 - recall) * one;
    row("bound", `n=${n} recall ${recall}`, "share own", "", (layerMs / own).toFixed(3), `${link} GB/s each`);
    row("bound", `n=${n} recall ${recall}`, "share one", "", (layerMs / shared).toFixed(3), `${link} GB/s together`);
  }
}

// ---- paper 004 (Speculating Experts): the gain of overlapping copy and compute, and its models' experts in bf16
for (const [end, compute, copy, gain] of [["least", 8, 88, "9"], ["most", 13, 84, "14"]]) {
  const bound = 100 * Math.min(compute, copy) / (compute + copy);
  row("004 eq. (1)", `Qwen3-30B-A3B ${end}`, "% of a token", gain, compute.toFixed(1), "min of its shares; with idle");
  row("004 eq. (1)", `Qwen3-30B-A3B ${end}`, "% of a token", gain, bound.toFixed(1), "min / sum");
}
for (const [name, depth, experts, hidden, inner, paper] of [["GPT-OSS-120B as printed", 24, 32, 2880, 2880, "213"],
  ["GPT-OSS-120B", 36, 128, 2880, 2880, "213"], ["Qwen3-235B-A22B", 94, 128, 4096, 1536, "230"]]) {
  const total = depth * experts * expertBytes(hidden, inner, 16);
  row("004 Table 2", name, "GB", paper, (total / 1e9).toFixed(1),
    `${(total / 2 ** 30).toFixed(1)} GiB; ${depth} x ${experts}`);
}
