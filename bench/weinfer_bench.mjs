#!/usr/bin/env node
// WeInfer's tables in a real Chromium on this machine's GPU: whole models of random weights through /bench.html.
//   usage: MOEX_BUILD=build MOEX_NPM=build/npm node bench/weinfer_bench.mjs [--tokens 300] [--turns 3] [--only NAME]
//   [--models SHAPE:WEIGHTS:KV,... [--fetch 1,8] [--poke on|off] [--ablation on|off] [--kernels on|off]] [--header]
// MOEX_CHROMIUM and MOEX_CHROMIUM_ARGS name the browser and what it needs to find the GPU. Without --models the tables:
//   ablation  SmolLM-135M, Qwen2-0.5B and 1.5B, TinyLlama-1.1B x q4f16, q4f32, q0f32 x none, reuse, pipeline, both at
//             I = 8 tokens a reading, and Llama-3-8B q4f16. q4 is INT4 in groups of 32, q0 f32; f16 and f32 are keys
//             and values. Sums are kept in f32 in all of them.
//   sweep     SmolLM-135M and Qwen2-1.5B q4f16 at I = 1 to 32, the GPU process poked or left to itself
//   whole     the demo at I = 16, and Qwen3-30B-A3B: INT4 experts, the rest bf16
// The conditions of a model take turns, I is fixed before, each cell has --tokens tokens. Prints CSV as the page's
// "Copy as CSV"; the columns are those of decoder_bench (web-worker/decoder/decoder_timing.h), and poke.
import { readFlags } from "./flags.mjs";
import { Hub } from "../tests/browser/support/hub.mjs";
import { launch } from "../tests/browser/support/tab.mjs";

const options = {
  tokens: "300", turns: "3", only: "", models: "", fetch: "8", poke: "on", ablation: "on", kernels: "off",
};
const with_header = readFlags("weinfer_bench", options);
const small = ["smollm-135m", "qwen2-0.5b", "qwen2-1.5b", "tinyllama-1.1b"];
const lengths = "1,2,4,8,16,32";
const sweep = (poke) => ({ name: "sweep", models: "smollm-135m:int4:f16,qwen2-1.5b:int4:f16", fetch: lengths, poke,
  ablation: "off" });
const tables = [
  { name: "whole", models: "qwen3-30b-a3b:mixed:f32", fetch: "8", kernels: "on" },
  { name: "whole", models: "demo:int4:f32", fetch: "16" },
  { name: "ablation", models: small.flatMap((shape) => [`${shape}:int4:f16`, `${shape}:int4:f32`, `${shape}:f32:f32`])
    .join(",") },
  sweep("on"),
  sweep("off"),
  { name: "ablation", models: "llama3-8b:int4:f16" },
];
const asked = options.models ? [{ ...options, name: "models" }]
  : tables.filter(({ name }) => !options.only || name === options.only);

const hub = await Hub.start(["--backend", "local"]);
const browser = await launch();
let lines = with_header ? 0 : 1;
try {
  for (const { name: _, ...table } of asked) {
    const page = await browser.newPage();
    page.setDefaultTimeout(0);
    const query = new URLSearchParams({ ...options, ...table });
    await page.goto(`${hub.url}/bench.html?${query}`);
    await page.getByRole("button", { name: "Measure the model", exact: true }).click();
    await page.waitForFunction(() => ["done", "failed"].includes(document.documentElement.dataset.model));
    const { csv, state, detail } = await page.evaluate(async () => ({
      csv: (await import("/js/bench/model_words.js")).modelCsvOf(window.moexModelRows ?? []),
      state: document.documentElement.dataset.model,
      detail: document.getElementById("model-detail").textContent,
    }));
    if (lines <= 1) console.log(`# ${detail}`);
    process.stdout.write(csv.split("\n").slice(lines === 0 ? 0 : 1).join("\n"));
    lines += 2;
    if (state === "failed") console.log(`# ${table.models}: ${detail}`);
    await page.close();
  }
} finally {
  await browser.close();
  await hub.remove();
}
