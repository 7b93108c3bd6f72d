#!/usr/bin/env node
// Repeats the measurements of WeInfer's tables in a real Chromium on this machine's GPU: whole models of random weights
// in /bench.html.
//   usage: MOEX_BUILD=build MOEX_NPM=build/npm node bench/weinfer_bench.mjs [--tokens 300] [--turns 3] [--only NAME]
//   [--models SHAPE:WEIGHTS:KV,... [--fetch 1,8] [--keep-alive on|off] [--ablation on|off] [--kernels on|off]]
//   [--patience-s 60] [--header]
// MOEX_CHROMIUM and MOEX_CHROMIUM_ARGS name the browser and what it needs to find the GPU. Without --models the bench
// measures these tables:
//   ablation  SmolLM-135M, Qwen2-0.5B and 1.5B, TinyLlama-1.1B x q4f16, q4f32, q0f32 x none, reuse, pipeline, both at
//             I = 8 tokens a reading, and Llama-3-8B q4f16. q4 is INT4 in groups of 32, q0 f32; f16 and f32 are keys
//             and values. Sums are kept in f32 in all of them.
//   sweep     SmolLM-135M and Qwen2-1.5B q4f16 at I = 1 to 32, with or without keep-alive writes to the GPU process
//   whole     the demo at I = 16, and Qwen3-30B-A3B: INT4 experts, the rest bf16
// The conditions of a model alternate, I (the tokens per reading) is fixed beforehand, and each measurement has
// --tokens tokens. Prints CSV as the page's "Copy as CSV"; the columns are those of decoder_bench
// (web-worker/decoder/decoder_timing.h), and keep_alive.
import { readFlags } from "./flags.mjs";
import { Hub } from "../tests/browser/support/hub.mjs";
import { launch } from "../tests/browser/support/tab.mjs";

const options = {
  tokens: "300", turns: "3", only: "", models: "", fetch: "8", "keep-alive": "on", ablation: "on", kernels: "off",
  "patience-s": "60",
};
const with_header = readFlags("weinfer_bench", options);
const small = ["smollm-135m", "qwen2-0.5b", "qwen2-1.5b", "tinyllama-1.1b"];
const lengths = "1,2,4,8,16,32";
const sweep = (keep_alive) => ({ name: "sweep", models: "smollm-135m:int4:f16,qwen2-1.5b:int4:f16", fetch: lengths,
  "keep-alive": keep_alive, ablation: "off" });
const ablation = (weights) => ({ name: "ablation", models: small.map((shape) => `${shape}:${weights}`).join(",") });
const tables = [
  { name: "whole", models: "demo:int4:f32", fetch: "16" },
  ablation("int4:f16"),
  { name: "whole", models: "qwen3-30b-a3b:mixed:f32", kernels: "on" },
  sweep("on"),
  { name: "ablation", models: "llama3-8b:int4:f16" },
  sweep("off"),
  ablation("int4:f32"),
  ablation("f32:f32"),
];
const asked = options.models ? [{ ...options, name: "models" }]
  : tables.filter(({ name }) => !options.only || name === options.only);

// Yields the page's rows as they arrive. A page without output for --patience-s is abandoned.
async function measure(browser, url, table) {
  const page = await browser.newPage();
  page.setDefaultTimeout(0);
  page.on("crash", () => console.log(`# ${table.models}: the page crashed`));
  const { "keep-alive": keep_alive, ...asked_of_page } = { ...options, ...table };
  await page.goto(`${url}/bench.html?${new URLSearchParams({ ...asked_of_page, keep_alive })}`);
  await page.getByRole("button", { name: "Measure the model", exact: true }).click();

  let seen = 0;
  let stage = "";
  for (let state = ""; !["done", "failed"].includes(state);) {
    const heard = await page.waitForFunction(([rows, before]) => {
      const { model } = document.documentElement.dataset;
      const now = document.getElementById("model-stage").textContent;
      const { moexModelRows = [] } = window;
      return (["done", "failed"].includes(model) || moexModelRows.length > rows || now !== before) && { model, now };
    }, [seen, stage], { timeout: 1000 * options["patience-s"] }).then((handle) => handle.jsonValue(), () => null);
    if (!heard) {
      console.log(`# ${table.models}: nothing came for ${options["patience-s"]} s: ${stage}`);
      break;
    }
    ({ model: state, now: stage } = heard);
    const { csv, detail } = await page.evaluate(async (first) => ({
      csv: (await import("/js/bench/model_words.js")).modelCsvOf((window.moexModelRows ?? []).slice(first)),
      detail: document.getElementById("model-detail").textContent,
    }), seen);
    const [columns, ...lines] = csv.trimEnd().split("\n");
    if (lines.length > 0 && with_header && !said_columns) console.log(`# Machine: ${detail}\n${columns}`);
    said_columns ||= lines.length > 0;
    for (const line of lines) console.log(line);
    seen += lines.length;
    if (state === "failed") console.log(`# ${table.models}: ${detail}`);
  }
  await page.close();
}

const hub = await Hub.start(["--backend", "local"]);
const browser = await launch();
let said_columns = false;
try {
  for (const { name: _, ...table } of asked) await measure(browser, hub.url, table);
} finally {
  await browser.close();
  await hub.remove();
}
