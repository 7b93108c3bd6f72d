// Measures tabs that hold all experts of a model: tokens a second, rounds, and how fast the experts arrive. Hubs of
// several revisions can be measured in turns.
//   node bench/tabs_bench.mjs [--shape NAME | --model DIR] [--tabs 1,2,4] [--users 1,8] [--tokens 64] [--hubs LIST]
//     [--browsers each|one] [--budget-mb N] [--hub-args "ARGS"] [--header]
// --hubs: programs that serve, whose pages the tabs then show [moex-hub of MOEX_BUILD]. --browsers each: each tab is in
// a Chromium of its own, with a profile on disk; one: all are in private windows of one Chromium, and thus of one GPU
// process. A tab lends at least N MB [its share of the experts]. The hub computes no experts (--local-fallback off).
// NAME as in `moex-hub synth`. MOEX_BUILD: build folder [build]; MOEX_NPM: npm packages of the tests [build/npm].
// CSV: see `columns`.
//   ready_s       from the start of the first tab until every tab has its experts; gb_per_s: their bytes in this time
//   disk_mb_per_s what the tabs' profiles have grown by in that time; the copies on disk are written behind
//   gap_*_ms      time between two tokens of an answer; round_*_ms: of a round as the hub sees it, over all rows so far
//   tab_round_ms  median of a round as a tab sees it, tab_gpu_us: of its GPU; of the slowest tab
// example: node bench/tabs_bench.mjs --tabs 1,2 --header
import { mkdtempSync, readFileSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, relative } from "node:path";

import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, build, chat, run } = await import("../tests/browser/support/hub.mjs");
const { launchQuiet } = await import("./bench_browser.mjs");
const { startTab } = await import("./bench_tab.mjs");

const columns = "model,hub,browsers,tabs,hub_args,adapter,users,tokens,tok_s,first_ms,gap_p50_ms,gap_p99_ms,"
  + "round_p50_ms,round_p99_ms,tab_round_ms,tab_gpu_us,frames_a_token,gb,ready_s,gb_per_s,disk_mb_per_s";
const options = {
  model: "", shape: "bench-moe", tabs: "1,2,4", users: "1,8", tokens: "64", hubs: join(build, "moex-hub"),
  browsers: "each", "budget-mb": "0", "hub-args": "",
};
const with_header = readFlags("tabs_bench", options);
const numbers = (name) => options[name].split(",").map(Number);
const quantile = (list, q) => [...list].sort((a, b) => a - b)[Math.min(list.length - 1, Math.floor(list.length * q))];

let folder = null;
if (!options.model) {
  folder = mkdtempSync(join(tmpdir(), "moex-tabs-bench-"));
  options.model = join(folder, options.shape);
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", options.shape, options.model]);
  if (made.code !== 0) throw new Error(made.stderr);
}
const { name: model } = JSON.parse(readFileSync(join(options.model, "manifest.json"), "utf8"));
const weights = join(options.model, "weights");
const experts_mb = readdirSync(weights, { recursive: true }).map((name) => statSync(join(weights, name)))
  .reduce((sum, file) => sum + (file.isFile() ? file.size : 0), 0) / 2 ** 20;

// Opens `count` tabs, and resolves to {tabs, adapter, arrival, stop()} once each has its experts. arrival: the last
// columns of the table.
async function openTabs(hub, count) {
  const browser = options.browsers === "one" ? await launchQuiet() : null;
  const budget_mb = Number(options["budget-mb"]) || Math.ceil(experts_mb / count) + 64;
  const began = performance.now();
  const tabs = await Promise.all(Array.from({ length: count }, () => startTab(hub, { budget_mb, browser })));
  await hub.until(({ health, workers }) => health === "ok" && workers.length === count
    && workers.every((one) => one.units_ready === one.units_assigned), "the tabs' experts");
  const seconds = (performance.now() - began) / 1000;
  const disk = (await Promise.all(tabs.map(({ page }) => page.evaluate(() => navigator.storage.estimate()))))
    .reduce((sum, { usage }) => sum + usage, 0);
  const states = await Promise.all(tabs.map((tab) => tab.status()));
  const gb = states.reduce((sum, { bytes_fetched }) => sum + bytes_fetched, 0) / 1e9;
  return {
    tabs,
    adapter: states[0].adapter.vendor,
    arrival: [gb.toFixed(2), seconds.toFixed(1), (gb / seconds).toFixed(2), (disk / 1e6 / seconds).toFixed(0)],
    stop: async () => {
      await Promise.all(tabs.map((tab) => tab.stop()));
      await browser?.close();
    },
  };
}

let seed = 0;      // each prompt is another one
async function answer(hub, max_tokens, times) {
  seed += 1;
  const prompt = Array.from({ length: 32 }, (_, i) => (i * 7919 + seed * 104729) % 4000 + 100);
  const began = performance.now();
  let last = 0;
  const { error } = await chat(hub, { model, prompt, max_tokens, temperature: 0, ignore_eos: true }, () => {
    const now = performance.now();
    if (last > 0) times.gaps.push(now - last);
    else times.firsts.push(now - began);
    last = now;
    times.tokens += 1;
  });
  if (error) throw new Error(error);
}

async function measure(hub, opened, users) {
  const times = { gaps: [], firsts: [], tokens: 0 };
  const { calls: from } = await hub.status();
  const began = performance.now();
  await Promise.all(Array.from({ length: users }, () => answer(hub, Number(options.tokens), times)));
  const seconds = (performance.now() - began) / 1000;
  const { calls } = await hub.status();
  const states = await Promise.all(opened.tabs.map((tab) => tab.status()));
  const slowest = (name) => Math.max(...states.map((state) => state[name]));
  return [
    users, times.tokens, (times.tokens / seconds).toFixed(2), quantile(times.firsts, 0.5).toFixed(0),
    quantile(times.gaps, 0.5).toFixed(1), quantile(times.gaps, 0.99).toFixed(1),
    calls.p50_ms.toFixed(2), calls.p99_ms.toFixed(2), slowest("round_ms_p50").toFixed(2),
    slowest("gpu_us_p50").toFixed(0), ((calls.frames_sent - from.frames_sent) / times.tokens).toFixed(1),
    ...opened.arrival,
  ];
}

async function measureHub(program, count) {
  const hub = await Hub.start(["--model", options.model, "--local-fallback", "off", "--timeout-ms", "60000",
    "--round-deadline-s", "120", "--sequences-max", "64", ...options["hub-args"].split(" ").filter(Boolean)],
  { program: [relative(build, program)] });
  let opened = null;
  try {
    opened = await openTabs(hub, count);
    await answer(hub, 8, { gaps: [], firsts: [], tokens: 0 });      // warm-up
    for (const users of numbers("users")) {
      const row = await measure(hub, opened, users);
      console.log([basename(options.model), basename(program), options.browsers, count, `"${options["hub-args"]}"`,
        opened.adapter, ...row].join(","));
    }
  } finally {
    await opened?.stop();
    await hub.remove();
  }
}

try {
  if (with_header) console.log(columns);
  for (const count of numbers("tabs"))
    for (const program of options.hubs.split(",")) await measureHub(program, count);
} finally {
  if (folder) rmSync(folder, { recursive: true, force: true });
}
