// Measures whether contributors make answers slower: the same completions by a hub alone, by a hub with workers that it
// asks when they are faster (--use-workers auto), and by a hub that always asks them. The hubs answer in turns.
//   node bench/reserve_bench.mjs [--shape NAME | --model DIR] [--users 1,64] [--tokens N] [--always-tokens N]
//     [--repeats N] [--workers N] [--worker-args ARGS] [--backend cpu|gpu|tab|tab-cpu] [--line RTT_MS,MBIT]
//     [--threads N] [--hubs LIST] [--header]
// --backend tab: tabs of Chromium, each in a browser of its own; tab-cpu: the same without a GPU
// --line: round trip time and bandwidth between the hub and each worker [200,2]; none: loopback as it is
// --hubs: the hubs in their order, the first one is the measure [alone,auto,always]; a second "alone" shows the noise
// --threads: compute threads of each hub, 0: all; --always-tokens: fewer tokens where each one takes seconds
// MOEX_BUILD: build folder [build]. CSV: see `columns`; tok/s are medians over all users together, of_alone is the
// median of the ratios to the hub alone just before; reserve: how many workers are in reserve after the last turn.
// example: node bench/reserve_bench.mjs --header
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { readFlags } from "./flags.mjs";
import { slowLine } from "./slow_line.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, build, run } = await import("../tests/browser/support/hub.mjs");

const columns = "model,threads,workers,backend,line,users,hub,tok_s,of_alone,of_alone_least,probes,reserve";
const options = {
  model: "static/models/demo", shape: "", users: "1,64", tokens: "200", "always-tokens": "6", repeats: "5",
  workers: "1", backend: "cpu", line: "200,2", threads: "0", "worker-args": "", hubs: "alone,auto,always",
};
const with_header = readFlags("reserve_bench", options);
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const is_near = options.line === "none";

let folder = null;
if (options.shape) {
  folder = mkdtempSync(join(tmpdir(), "moex-reserve-bench-"));
  options.model = join(folder, options.shape);
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", options.shape, options.model]);
  if (made.code !== 0) throw new Error(made.stderr);
}

async function startWorker(url, link) {
  if (options.backend.startsWith("tab")) {
    const { startTab } = await import("./bench_tab.mjs");
    return startTab({ url, join: link }, { webgpu: options.backend === "tab" });
  }
  const args = ["--backend", options.backend, ...options["worker-args"].split(" ").filter(Boolean)];
  return NativeWorker.start({ url, join: link }, args);
}

// Starts a hub, and its workers unless `use` is "alone". The lines become slow when all workers have their experts.
async function begin(use) {
  const setup = { use, workers: [], lines: [] };
  setup.hub = await Hub.start(["--model", options.model, "--prefix-cache", "off", "--sequences-max", "64",
    "--threads", options.threads, "--use-workers", use === "always" ? "always" : "auto"]);
  for (let i = 0; use !== "alone" && i < Number(options.workers); i += 1) {
    const line = is_near ? null : await slowLine(setup.hub.port);
    if (line) setup.lines.push(line);
    const url = line ? setup.hub.url.replace(/:\d+$/, `:${line.port}`) : setup.hub.url;
    setup.workers.push(await startWorker(url, setup.hub.join));
  }
  if (setup.workers.length > 0)
    await setup.hub.until(({ workers }) => workers.length === setup.workers.length
      && workers.every((one) => one.units_ready > 0 && one.units_ready === one.units_assigned), "the workers' experts");
  if (!is_near) {
    const [rtt_ms, mbit_per_s] = options.line.split(",").map(Number);
    for (const line of setup.lines) line.set({ rtt_ms, mbit_per_s });
  }
  setup.model = (await (await fetch(`${setup.hub.url}/v1/models`)).json()).data[0].id;
  return setup;
}

// Resolves to the tokens per second of `users` completions at the same time.
async function complete({ hub, model }, seed, users, max_tokens) {
  const begin = performance.now();
  const counts = await Promise.all(Array.from({ length: users }, async (_, user) => {
    const prompt = Array.from({ length: 16 }, (_, i) => (i * 7919 + (seed * 64 + user) * 104729) % 4000 + 100);
    const response = await fetch(`${hub.url}/v1/completions`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model, prompt, max_tokens, temperature: 0 }),
    });
    const body = await response.json();
    if (!response.ok) throw new Error(JSON.stringify(body));
    return body.usage.completion_tokens;
  }));
  return counts.reduce((sum, count) => sum + count, 0) / ((performance.now() - begin) / 1000);
}

async function measure(setups, users) {
  for (const setup of setups) Object.assign(setup, { speeds: [], ratios: [] });
  const length = (setup) => Number(setup.use === "always" && !is_near ? options["always-tokens"] : options.tokens);
  // The warm-up gives hubs with `auto` the time to compare their workers with themselves.
  for (const setup of setups) await complete(setup, 99, users, length(setup));
  for (let repeat = 0; repeat < Number(options.repeats); repeat += 1) {
    for (const setup of setups) {
      setup.speeds.push(await complete(setup, repeat, users, length(setup)));
      setup.ratios.push(setup.speeds.at(-1) / setups[0].speeds.at(-1));
    }
  }
  for (const setup of setups) {
    const { calls, workers } = await setup.hub.status();
    console.log([
      basename(options.model), options.threads, setup.workers.length, setup.use === "alone" ? "-" : options.backend,
      setup.use === "alone" || is_near ? "none" : options.line.replace(",", " ms "), users, setup.use,
      median(setup.speeds).toFixed(1), median(setup.ratios).toFixed(3), Math.min(...setup.ratios).toFixed(3),
      calls.probes_sent, workers.filter((one) => one.state === "reserve").length,
    ].join(","));
  }
}

const setups = [];
try {
  for (const use of options.hubs.split(",")) setups.push(await begin(use));
  if (with_header) console.log(columns);
  for (const users of options.users.split(",")) await measure(setups, Number(users));
} finally {
  for (const { hub, workers, lines } of setups) {
    for (const worker of workers) await worker.stop();
    for (const line of lines) line.close();
    await hub.remove();
  }
  if (folder) rmSync(folder, { recursive: true, force: true });
}
