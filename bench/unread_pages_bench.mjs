// Measures the cost for other clients of a silent client, which opens requests for pages (POST /v1/prefill) and reads
// nothing: the time of another client's answers alone, and beside the silent client, in turns.
//   node bench/unread_pages_bench.mjs [--model DIR] [--open 100] [--answers 20] [--turns 3] [--hub-args "ARGS"]
//     [--header]
// The silent client has an address of its own (127.0.0.2), so that the hub counts it apart. MOEX_BUILD: build folder.
// CSV: see `columns`; times are medians, ratio is beside by alone. opened: requests that got a place; refused: by 429.
// example: node bench/unread_pages_bench.mjs --header
import { request } from "node:http";
import { basename } from "node:path";

import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub } = await import("../tests/browser/support/hub.mjs");

const options = { model: "static/models/demo", open: "100", answers: "20", turns: "3", "hub-args": "" };
const with_header = readFlags("unread_pages_bench", options);
const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];

const hub = await Hub.start(["--model", options.model, "--backend", "local", "--speculative", "off",
  ...options["hub-args"].split(" ").filter(Boolean)]);
const tokens = (num, first) => Array.from({ length: num }, (_, i) => (first + i * 37) % 4000);

// Opens a request and never reads its answer. Resolves to {status, end()} when the head of the answer is here.
function open(prompt) {
  return new Promise((resolve, reject) => {
    const asked = request(`${hub.url}/v1/prefill`, {
      method: "POST", localAddress: "127.0.0.2", agent: false, headers: { "Content-Type": "application/json" },
    }, (answer) => resolve({ status: answer.statusCode, end: () => asked.destroy() }));
    asked.on("error", reject);
    asked.end(JSON.stringify({ prompt, rows: "f32" }));
  });
}

async function answer(seed) {
  const began = performance.now();
  const response = await fetch(`${hub.url}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ prompt: tokens(200, seed), max_tokens: 32, temperature: 0, ignore_eos: true }),
  });
  if (!response.ok) throw new Error(await response.text());
  await response.json();
  return performance.now() - began;
}

const alone = [], beside = [];
let opened = 0, refused = 0, seed = 0;
async function measure(times) {
  for (let i = 0; i < Number(options.answers); i += 1) times.push(await answer(seed += 1));
}
try {
  await measure([]);      // the first answers of a process are slower
  for (let turn = 0; turn < Number(options.turns); turn += 1) {
    await measure(alone);
    const lines = await Promise.all(Array.from({ length: Number(options.open) }, (_, i) => (
      open(tokens(900, 5000 + turn * 200 + i)))));
    opened += lines.filter(({ status }) => status === 200).length;
    refused += lines.filter(({ status }) => status === 429).length;
    await measure(beside);
    for (const { end } of lines) end();
  }
  if (with_header) console.log("model,open,turns,opened,refused,alone_ms,beside_ms,ratio");
  console.log([basename(options.model), options.open, options.turns, opened, refused, median(alone).toFixed(1),
    median(beside).toFixed(1), (median(beside) / median(alone)).toFixed(2)].join(","));
} finally {
  await hub.remove();
}
