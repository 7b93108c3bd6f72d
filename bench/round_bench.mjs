#!/usr/bin/env node
// Measures the time of a round in the hub and in the worker, during a decode with its natural gaps: one user and one
// worker that holds all experts, on this machine. Any package works, also one without a tokenizer.
//   node bench/round_bench.mjs --model DIR [--backend tab|gpu|cpu] [--device NAME] [--tokens N] [--warm N]
//                              [--hub-args "FLAGS OF SERVE"] [--header]
//   frame_*   time in the worker from a frame's arrival to its answer's departure, in us, over the rounds with one row
//             of N tokens [200], after the tokens of --warm [200]
//   hub_*     time in the hub from the queued frame to the checked answer; gpu_us: the part on the worker's GPU, as the
//             worker reports it
//   keep_alive_writes, keep_alive_dispatches  their number per round, only for a tab; keep_alive_us: the period of the
//             writes at the end (web-worker/browser/gpu.js)
// The times are taken from `serve --trace` and from GROUP_RESULT frames.
// --backend tab: the worker is a tab of Chromium (MOEX_CHROMIUM, MOEX_CHROMIUM_ARGS, MOEX_NPM [build/npm]).
// MOEX_BUILD: build folder [build].
// example: node bench/round_bench.mjs --model bench-moe --hub-args "--gpu off" --header
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker } = await import("../tests/browser/support/hub.mjs");

const options = { model: "static/models/demo", backend: "tab", device: "", tokens: "200", warm: "200", "hub-args": "" };
const with_header = readFlags("round_bench", options);
const { startTab } = options.backend === "tab" ? await import("./bench_tab.mjs") : {};

async function decode(hub, model, max_tokens) {
  const response = await fetch(`${hub.url}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, prompt: [1, 2, 3, 4], max_tokens, temperature: 1, seed: 5, ignore_eos: true }),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(JSON.stringify(answer));
  return answer.usage.completion_tokens;
}

// Starts the worker, and returns functions that read its counters and stop it.
async function startWorker(hub) {
  if (options.backend !== "tab") {
    const device = options.device ? ["--device", options.device] : [];
    const worker = await NativeWorker.start(hub, ["--backend", options.backend, ...device]);
    return { counts: () => ({}), stop: () => worker.stop(), adapter: worker.adapter };
  }
  const { status, stop } = await startTab(hub);
  const { adapter } = await status();
  return { counts: status, stop, adapter: `Chromium, ${adapter.vendor} ${adapter.description}`.trim() };
}

// Returns the rounds with one row, in the order in which they began: {frame_us, gpu_us, hub_us}.
function roundsOf(file) {
  const text = readFileSync(file, "utf8").trim();
  const events = JSON.parse(text.endsWith("]") ? text : `${text.replace(/,\s*$/, "")}]`);
  const begun = new Map();
  const rounds = [];
  for (const { ph, name, pid, id, ts, args } of events) {
    if (name !== "round" || !["b", "e"].includes(ph)) continue;
    const key = `${pid} ${id}`;
    if (ph === "b") begun.set(key, { ts, args });
    else if (begun.has(key)) {
      const { ts: began, args: { rows, worker_us, gpu_us } } = begun.get(key);
      begun.delete(key);
      if (rows === 1 && worker_us > 0) rounds.push({ frame_us: worker_us, gpu_us, hub_us: ts - began });
    }
  }
  return rounds;
}

const quantile = (values, share) => values.slice().sort((a, b) => a - b)[Math.floor(share * (values.length - 1))];
const mean = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;

const folder = mkdtempSync(join(tmpdir(), "moex-rounds-"));
process.on("exit", () => rmSync(folder, { recursive: true }));
const trace = join(folder, "trace.json");
const hub = await Hub.start(["--model", options.model, "--local-fallback", "off", "--replicas", "1", "--check-answers",
  "off", "--hot-copies", "0", "--timeout-ms", "60000", "--trace", trace,
  ...options["hub-args"].split(" ").filter(Boolean)]);
let worker = null;
const seen = {};
try {
  worker = await startWorker(hub);
  const is_whole = ({ coverage }) => coverage.replicas_min === 1 && coverage.away === 0;
  const { model } = await hub.until(is_whole, "the experts");
  await decode(hub, model.name, Number(options.warm));
  const before = await worker.counts();
  const begun = performance.now();
  seen.tokens = await decode(hub, model.name, Number(options.tokens));
  seen.tok_s = 1000 * seen.tokens / (performance.now() - begun);
  const after = await worker.counts();
  // all tokens but the first, which the prompt's rounds computed
  seen.rounds = (seen.tokens - 1) * model.num_moe_layers;
  const aRound = (name) => ((after[name] - before[name]) / seen.rounds).toFixed(2);
  if (options.backend === "tab")
    seen.keep_alive = [aRound("keep_alive_writes"), aRound("keep_alive_dispatches"), after.keep_alive_period_us];
} finally {
  await worker?.stop();
  await hub.remove();
}

const rounds = roundsOf(trace).slice(-seen.rounds);
const frame = rounds.map(({ frame_us }) => frame_us);
const by_hub = rounds.map(({ hub_us }) => hub_us);
if (with_header)
  console.log("model,backend,tokens,rounds,tok_s,frame_p10,frame_p50,frame_p90,frame_p99,frame_mean,hub_p50,hub_p99,"
    + "gpu_us,keep_alive_writes,keep_alive_dispatches,keep_alive_us,adapter");
console.log([
  basename(options.model), options.backend, seen.tokens, rounds.length, seen.tok_s.toFixed(1),
  ...[0.1, 0.5, 0.9, 0.99].map((share) => quantile(frame, share).toFixed(0)), mean(frame).toFixed(0),
  ...[0.5, 0.99].map((share) => quantile(by_hub, share).toFixed(0)),
  quantile(rounds.map(({ gpu_us }) => gpu_us), 0.5).toFixed(0), ...(seen.keep_alive ?? ["", "", ""]),
  `"${worker.adapter}"`,
].join(","));
