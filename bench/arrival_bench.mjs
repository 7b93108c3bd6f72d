// Measures how long native workers take to have their experts: from the start of their processes until the hub has all
// units ready at each of them. Hub and workers share one machine; the hub has been asked for every blob once before, so
// that it knows their hashes.
//   node bench/arrival_bench.mjs [--shape NAME | --model DIR] [--workers N] [--whole on|off] [--backend cpu|gpu]
//     [--worker-args ARGS] [--programs LIST] [--repeats N] [--header]
// --whole on: each worker holds all experts; off: all together hold each expert once
// --programs: build folders whose moex-worker is measured, in turns [the folder MOEX_BUILD]; the hub is MOEX_BUILD's
// CSV: GB are 1e9 bytes over all workers; *_cpu_s_per_gb are seconds of processor time: of the hub, of the workers'
// threads that fetch, and of the workers' other threads. These depend little on what else the machine does.
// example: node bench/arrival_bench.mjs --workers 8 --header
//          node bench/arrival_bench.mjs --model packages/qwen3-30b --workers 8 --whole off --backend gpu \
//            --worker-args "--budget-mb 3000" --header
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { spawn } from "node:child_process";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, build, run } = await import("../tests/browser/support/hub.mjs");

const options = {
  model: "", shape: "bench-moe", workers: "1", whole: "on", backend: "cpu", "worker-args": "", programs: build,
  repeats: "3",
};
const with_header = readFlags("arrival_bench", options);
const num_workers = Number(options.workers), ticks_per_s = 100;
let folder = null;
if (!options.model) {
  folder = mkdtempSync(join(tmpdir(), "moex-arrival-bench-"));
  options.model = join(folder, options.shape);
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", options.shape, options.model]);
  if (made.code !== 0) throw new Error(made.stderr);
}
const { experts } = JSON.parse(readFileSync(join(options.model, "manifest.json"), "utf8"));
const hashes = [...new Set(experts.flat())];

// Returns the seconds of processor time of a process's threads, by whether they fetch.
function cpuOf(pid) {
  const seconds = { fetch: 0, other: 0 };
  for (const task of readdirSync(`/proc/${pid}/task`)) {
    let stat = "";
    try {
      stat = readFileSync(`/proc/${pid}/task/${task}/stat`, "utf8");
    } catch { continue; }      // the thread has ended
    const name = stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")"));
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    seconds[name === "fetch" ? "fetch" : "other"] += (Number(fields[11]) + Number(fields[12])) / ticks_per_s;
  }
  return seconds;
}
const sum = (values) => values.reduce((all, value) => all + value, 0);

// Prints a row for the workers of `program`.
async function measure(hub, program) {
  const hub_before = cpuOf(hub.child.pid), began = performance.now();
  const token = new URL(hub.join).hash.slice(1).split("token=")[1];
  const args = ["--hub", hub.url.replace("http", "ws"), "--backend", options.backend,
    ...options["worker-args"].split(" ").filter(Boolean)];
  const workers = Array.from({ length: num_workers }, () => spawn(join(program, "moex-worker"), args,
    { stdio: "ignore", env: { ...process.env, MOEX_TOKEN: token } }));
  try {
    const units = options.whole === "on" ? num_workers * experts.flat().length : experts.flat().length;
    const status = await hub.until(({ workers: all }) => all.length === num_workers
      && sum(all.map((one) => one.units_ready)) >= units
      && all.every((one) => one.units_ready === one.units_assigned), "the workers' experts");
    const seconds = (performance.now() - began) / 1000, used = workers.map(({ pid }) => cpuOf(pid));
    const hub_after = cpuOf(hub.child.pid);
    const bytes = sum(status.workers.map((one) => one.units_ready)) * blob_bytes, gb = bytes / 1e9;
    const hub_s = hub_after.fetch + hub_after.other - hub_before.fetch - hub_before.other;
    const fetch_s = sum(used.map(({ fetch: s }) => s)), other_s = sum(used.map(({ other: s }) => s));
    console.log([
      basename(options.model), num_workers, options.whole, options.backend, basename(dirname(resolve(program))),
      ...[gb, seconds, gb / seconds, hub_s / gb, fetch_s / gb, other_s / gb].map((value) => value.toFixed(2)),
    ].join(","));
  } finally {
    for (const worker of workers) {
      const ended = new Promise((resolve) => { worker.once("exit", resolve); });
      worker.kill("SIGKILL");
      await ended;
    }
    await hub.until(({ workers: all }) => all.length === 0, "the workers to leave");
  }
}

let hub = null, blob_bytes = 0;
try {
  hub = await Hub.start(["--model", options.model, "--local-fallback", "off", "--replicas",
    options.whole === "on" ? String(num_workers) : "1", "--check-answers", "off"]);
  for (const hash of hashes)
    blob_bytes = (await (await fetch(`${hub.url}/weights/${hash}`)).arrayBuffer()).byteLength;
  if (with_header)
    console.log("model,workers,whole,backend,program,gb,seconds,gb_per_s,hub_cpu_s_per_gb,fetch_cpu_s_per_gb,"
      + "other_cpu_s_per_gb");
  for (let repeat = 0; repeat < Number(options.repeats); repeat += 1)
    for (const program of options.programs.split(",")) await measure(hub, program);
} finally {
  if (hub) await hub.remove();
  if (folder) rmSync(folder, { recursive: true, force: true });
}
