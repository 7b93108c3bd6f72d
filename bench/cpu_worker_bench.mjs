// Measures the cost of a worker on the processor. Measures the same chat through a hub's local backend and through a
// hub with one such worker over loopback, alternately, on a quiet machine and beside busy tasks.
//   node bench/cpu_worker_bench.mjs [--shape NAME | --model DIR] [--tokens N] [--repeats N] [--busy N] [--header]
// MOEX_BUILD: build folder [build]. CSV: see `columns`; tok/s are medians of decoding, `of_local` is the median of the
// ratios to the local run just before, kB is the traffic of both directions per token.
// example: node bench/cpu_worker_bench.mjs --shape bench-moe --busy 7 --header
import { spawn } from "node:child_process";
import { rmSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, build, run } = await import("../tests/browser/support/hub.mjs");

const columns = "model,experts,wire,busy,tokens,decode_tok_s,of_local,of_quiet,kb_per_token,p50_ms";
const options = { model: "static/models/demo", shape: "", tokens: "64", repeats: "5", busy: "0" };
const with_header = readFlags("cpu_worker_bench", options);

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

let folder = null;
if (options.shape) {
  folder = mkdtempSync(join(tmpdir(), "moex-cpu-bench-"));
  options.model = join(folder, options.shape);
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", options.shape, options.model]);
  if (made.code !== 0) throw new Error(made.stderr);
}

// Starts a hub and its one worker. The setup `local` has no worker.
async function begin(experts, wire) {
  const remote = experts === "worker";
  const hub = await Hub.start(["--model", options.model, "--local-fallback", remote ? "off" : "on", "--replicas", "1",
    "--timeout-ms", "60000", "--round-deadline-s", "300", "--prefix-cache", "off", "--wire-dtype", wire]);
  const worker = remote ? await NativeWorker.start(hub, ["--backend", "cpu"]) : null;
  await hub.until((status) => status.health === "ok", "every expert to have an answerer");
  const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
  return { experts, wire, hub, worker, model, quiet: [], busy: [], ratios: { quiet: [], busy: [] }, bytes: 0 };
}

async function complete({ hub, model }, seed, max_tokens) {
  const prompt = Array.from({ length: 16 }, (_, i) => (i * 7919 + seed * 104729) % 4000 + 100);
  const response = await fetch(`${hub.url}/v1/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, prompt, max_tokens, temperature: 0, stream: false }),
  });
  const body = await response.json();
  if (!response.ok) throw new Error(JSON.stringify(body));
  return body;
}

const sent = async ({ hub }) => {
  const { calls } = await hub.status();
  return calls.bytes_sent + calls.bytes_received;
};

// Runs all setups one after the other, and repeats this `repeats` times.
async function turns(setups, when) {
  for (let repeat = 0; repeat < Number(options.repeats); repeat += 1) {
    for (const setup of setups) {
      const whole = await complete(setup, repeat, Number(options.tokens));
      setup[when].push(whole.timings.predicted_per_second);
      setup.ratios[when].push(setup[when].at(-1) / setups[0][when].at(-1));
    }
  }
}

// Returns the network traffic per decoded token: the bytes of the prompt and of its first token are subtracted.
async function bytesPerToken(setup) {
  const start = await sent(setup);
  const one = await complete(setup, 1000, 1);
  const between = await sent(setup);
  const all = await complete(setup, 1000, Number(options.tokens));
  const decoded = (await sent(setup)) - between - (between - start);
  return decoded / (all.usage.completion_tokens - one.usage.completion_tokens);
}

async function print(setup, when) {
  const { calls } = await setup.hub.status();
  console.log([
    basename(options.model), setup.experts, setup.wire, when === "busy" ? options.busy : 0, options.tokens,
    median(setup[when]).toFixed(1), median(setup.ratios[when]).toFixed(2),
    (median(setup[when]) / median(setup.quiet)).toFixed(2),
    setup.experts === "local" ? "0" : (setup.bytes / 1e3).toFixed(2), calls.p50_ms.toFixed(3),
  ].join(","));
}

const setups = [];
const spinners = [];
try {
  for (const [experts, wire] of [["local", "f16"], ["worker", "f16"], ["worker", "int8"]])
    setups.push(await begin(experts, wire));
  for (const setup of setups) {
    await complete(setup, 9999, 8);                              // warm-up
    setup.bytes = await bytesPerToken(setup);
  }

  if (with_header) console.log(columns);
  await turns(setups, "quiet");
  for (const setup of setups) await print(setup, "quiet");
  if (Number(options.busy) > 0) {
    for (let i = 0; i < Number(options.busy); i += 1) spinners.push(spawn("/bin/sh", ["-c", "while :; do :; done"]));
    await turns(setups, "busy");
    for (const setup of setups) await print(setup, "busy");
  }
} finally {
  for (const spinner of spinners) spinner.kill("SIGKILL");
  for (const { hub, worker } of setups) {
    await worker?.stop();
    await hub.remove();
  }
  if (folder) rmSync(folder, { recursive: true, force: true });
}
