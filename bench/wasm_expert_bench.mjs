// Measures one expert in WASM with SIMD128 on one thread, as a tab without WebGPU computes it. It runs in Node, which
// has Chromium's engine.
//   node bench/wasm_expert_bench.mjs [--repeats N] [--header]
// MOEX_BUILD: build folder with its tests [build]. CSV: ms is the median over 16 experts and N passes over them, gmac_s
// the rate in multiply-adds.
import { loadSimd128 } from "../tests/web-worker/browser/load_simd128.mjs";

const repeats = Number(process.argv[process.argv.indexOf("--repeats") + 1] || 20);
const wasm = await loadSimd128();
if (process.argv.includes("--header")) console.log("shape,hidden,intermediate,group,rows,arithmetic,ms,gmac_s");
for (const [shape, hidden, intermediate, group] of [["demo", 384, 256, 128], ["qwen3-30b", 2048, 768, 128]]) {
  for (const rows of [1, 4, 16]) {
    for (const arithmetic of ["int8", "exact"]) {
      const ms = wasm._simd128_expert_ms(hidden, intermediate, group, rows, arithmetic === "exact" ? 1 : 0, repeats);
      const gmac_s = (rows * 3 * hidden * intermediate) / ms / 1e6;
      console.log([shape, hidden, intermediate, group, rows, arithmetic, ms.toFixed(3), gmac_s.toFixed(2)].join(","));
    }
  }
}
