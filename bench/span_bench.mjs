// Tokens per second with a round trip a layer (experts) and with one for several layers (spans), behind delay lines.
// Each native worker, or with --tab each tab of Chromium, has a delay line of its own; the hub computes no experts
// (--local-fallback off) but those of N layers [0], the first and the last ones. Both grains are measured with the
// same hub and workers, in turns: `moex.spans: "off"` keeps an answer out of spans.
//   node bench/span_bench.mjs [--shape NAME | --model DIR] [--rtt 0,5,20,50] [--workers 2] [--users 1] [--tokens 48]
//     [--own-layers N] [--prompt TOKENS] [--mbit R] [--grains both | spans] [--repeat 3] [--budget-mb 4096]
//     [--drafts off | replay@P] [--late-share P --late-ms X] [--turns N] [--wait-s N] [--hub-args "ARGS"]
//     [--worker-args "ARGS"] [--tab] [--header]
// --rtt and --users are lists, which one swarm serves: the lines get one round trip time after another, and with --mbit
// R Mbit/s in each direction, once all weights are loaded and the spans are proven.
// --grains spans leaves out the rounds of experts. {i} in --worker-args is the worker's number. A share P
// [0] of the frames on each line, in both directions, is late by X ms [200] more, and what follows it waits. With
// --turns N [0] each user asks N times more after the measurement, each time with 64 more tokens of prompt, and the hub
// keeps what it has computed (--prefix-cache on, which is off otherwise). --wait-s N [0]: begins after N s, or once
// every layer has a holder that computes it whole: where memory is scarce, the hub first moves experts between workers.
// NAME as in `moex-hub synth`. MOEX_BUILD: build folder [build], with moex-hub, moex-worker and delay_line. CSV: see
// `columns`.
//   trips         round trips of a token: one a span that was used, one a layer in none
//   *_tok_s       median over the repeats of all users' tokens a second, without the first token of each answer
//   *_gap_*_ms    time between two tokens of an answer: median and p99 of all answers that were counted
//   *_first_ms    time until the prompt's last row was computed: the median of all answers that were counted
//   of_bound      spans' rate beside users * 1000 / (trips * rtt + ms of a token at an RTT of 0), if that was measured
//   experts_tok_s not measured with --drafts, because it takes a round trip a layer
//   drafts_tok_s  spans with drafted tokens, each of them right with the probability P (replay_hub.cpp), at no cost
//   turns_*       medians over those N questions: until the prompt's last row, between tokens, and bytes of keys and
//                 values that a question of one user brought to holders
//   up, down      bytes a row to and from a span; *_formula: 4 bytes a value of the row each way, and 2 bytes a value
//                 of the keys and values of the span's layers behind the answer
// example: node bench/span_bench.mjs --header
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, build, run } = await import("../tests/browser/support/hub.mjs");
const { farAway } = await import("./far_away.mjs");
const { slowLine } = await import("./slow_line.mjs");

const columns = "model,own_layers,workers,users,rtt_ms,mbit_per_s,spans,layers,trips,experts_tok_s,spans_tok_s,ratio,"
  + "of_bound,late,failed,lies,up,up_formula,down,down_formula,kv_bytes_sent,late_share,experts_gap_p50_ms,"
  + "experts_gap_p99_ms,spans_gap_p50_ms,spans_gap_p99_ms,prompt_tokens,experts_first_ms,spans_first_ms,drafts_tok_s,"
  + "turns_first_ms,turns_gap_p50_ms,turns_kv_bytes";
const options = {
  model: "static/models/demo", shape: "", rtt: "0,5,20,50", workers: "2", users: "1", tokens: "48", repeat: "3",
  "own-layers": "0", prompt: "16", mbit: "0", grains: "both", drafts: "off", "budget-mb": "4096", "late-share": "0",
  "late-ms": "200", turns: "0", "wait-s": "0", "hub-args": "", "worker-args": "",
};
const in_tabs = process.argv.includes("--tab");
if (in_tabs) process.argv.splice(process.argv.indexOf("--tab"), 1);
const with_header = readFlags("span_bench", options);
const numbers = (name) => options[name].split(",").map(Number);
const words = (text) => text.split(" ").filter(Boolean);
const quantile = (list, q) => [...list].sort((a, b) => a - b)[Math.min(list.length - 1, Math.floor(list.length * q))];
const median = (list) => quantile(list, 0.5);
const mbit_per_s = Number(options.mbit);
const late = { share: Number(options["late-share"]), ms: Number(options["late-ms"]) };
const unchanged_min = 4;      // answers without another holder, where not every worker holds a span
const warm_up_max = 400;      // answers that a swarm gets until its spans are measured

let folder = null;
if (options.shape) {
  folder = mkdtempSync(join(tmpdir(), "moex-span-bench-"));
  options.model = join(folder, options.shape);
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", options.shape, options.model]);
  if (made.code !== 0) throw new Error(made.stderr);
}
const config = JSON.parse(readFileSync(join(options.model, "manifest.json"), "utf8")).config;

const acceptance = /^replay@([\d.]+)$/.exec(options.drafts)?.[1];
if (!acceptance && options.drafts !== "off") throw new Error(`--drafts ${options.drafts}: off or replay@P`);

async function openTab(url, link) {
  const { startTab } = await import("./bench_tab.mjs");
  return startTab({ url, join: link }, { budget_mb: Number(options["budget-mb"]) });
}

async function swarm() {
  const hub = await Hub.start(["--model", options.model, "--local-fallback", "off", "--spans", "auto",
    "--own-layers", options["own-layers"],
    "--replicas", "1", "--speculative", acceptance ? "auto" : "off", "--timeout-ms", "60000",
    "--prefix-cache", options.turns === "0" ? "off" : "on", "--round-deadline-s", "300", ...words(options["hub-args"])],
  { program: acceptance ? ["replay_hub", acceptance, "0"] : ["moex-hub"] });
  const lines = [], workers = [];
  for (let i = 0; i < Number(options.workers); i += 1) {
    const line = mbit_per_s > 0 ? await slowLine(hub.port) : await farAway(hub.port, 0, late);
    lines.push(line);
    const url = `http://127.0.0.1:${line.port ?? line.address().port}`;
    workers.push(await (in_tabs ? openTab(url, hub.join) : NativeWorker.start({ url, join: hub.join },
      ["--budget-mb", options["budget-mb"], ...words(options["worker-args"].replaceAll("{i}", i))])));
  }
  await hub.until((status) => status.coverage.covered === status.coverage.units, "the experts");
  const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
  const end = async () => {
    for (const worker of workers) await worker.stop("SIGKILL");
    lines.forEach((line) => line.close());
    await hub.remove();
  };
  return { hub, model, lines, end };
}

// Streams one answer. Resolves to its rate; adds the milliseconds between its tokens to `gaps`, and those of its prompt
// to `firsts`.
async function stream({ hub, model }, fields, { gaps = [], firsts = [] }) {
  const response = await fetch(`${hub.url}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, temperature: 0, ignore_eos: true, stream: true, ...fields }),
  });
  if (!response.ok) throw new Error(await response.text());
  let held = "", last = 0, rate = 0, first_ms = NaN;
  for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
    const now = performance.now();
    held += bytes;
    for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
      if (!held.startsWith("data: {")) continue;
      const chunk = JSON.parse(held.slice(6, at));
      if (chunk.error) throw new Error(JSON.stringify(chunk.error));
      rate = chunk.timings?.predicted_per_second ?? rate;
      first_ms = chunk.timings?.prompt_ms ?? first_ms;
      if (!chunk.choices?.[0]?.text) continue;
      if (last > 0) gaps.push(now - last);
      last = now;
    }
  }
  firsts.push(first_ms);
  return rate;
}

// Resolves to the rate of an answer to each user, all at once.
async function ask(one, seed, max_tokens, users, spans, { speculative = "off", more = 0, ...times } = {}) {
  const rates = await Promise.all(Array.from({ length: users }, async (_, user) => {
    const prompt = Array.from({ length: Number(options.prompt) + more },
      (_, i) => (i * 7919 + (seed * 64 + user) * 104729) % 4000 + 100);
    const moex = acceptance ? { spans, speculative } : { spans };
    return stream(one, { prompt, max_tokens, seed, moex }, times);
  }));
  return rates.reduce((sum, rate) => sum + rate, 0);
}

// Asks a short answer a second until each layer that the hub does not keep has a holder, for --wait-s at most.
async function placed(one) {
  const until = performance.now() + 1000 * Number(options["wait-s"]);
  const wanted = config.num_layers - Math.max(3, Number(options["own-layers"]));
  for (let seed = 0; performance.now() < until; seed += 1) {
    await ask(one, 9000 + seed, 2, 1, "auto");
    const { spans: { held } } = await one.hub.status();
    const layers = held.flatMap(({ first_layer, end_layer }) =>
      Array.from({ length: end_layer - first_layer }, (_, i) => first_layer + i));
    if (new Set(layers).size >= wanted) return;
    await new Promise((go) => { setTimeout(go, 1000); });
  }
}

// Answers until every span is proven and both ways are measured. Then it asks for as many answers at once as there are
// users at most.
async function warmUp(one, first_seed) {
  let same = 0, before = "";
  for (let seed = 0; seed < warm_up_max; seed += 1) {
    const { spans: { held } } = await one.hub.status();
    const are_measured = held.length > 0 && held.every(({ proven, here_ms, away_ms, standby }) =>
      standby || (proven && here_ms > 0 && away_ms > 0));
    const now = held.map(({ worker }) => worker).join();
    same = now === before && are_measured ? same + 1 : 0;
    before = now;
    if (same > 0 && (held.length >= Number(options.workers) || same > unchanged_min)) break;
    await ask(one, first_seed + seed, 8, 1, "auto");
  }
  await ask(one, first_seed + 1000, 16, Math.max(...numbers("users")), "auto");
}

// Resolves to the medians of later questions, which continue the prompts of the answers that were measured last.
async function laterTurns(one, seed, tokens, users) {
  const gaps = [], firsts = [], kv_bytes = [];
  for (let turn = 1; turn <= Number(options.turns); turn += 1) {
    const { spans: from } = await one.hub.status();
    await ask(one, seed, tokens, users, "auto", { more: 64 * turn, gaps, firsts });
    kv_bytes.push(((await one.hub.status()).spans.kv_bytes - from.kv_bytes) / users);
  }
  return firsts.length === 0 ? ["", "", ""]
    : [median(firsts).toFixed(0), median(gaps).toFixed(1), median(kv_bytes).toFixed(0)];
}

const ms_at_0 = new Map();    // users -> milliseconds of a token
let num_rows = 0;             // of the table: the prompts of each are others
async function measure(one, rtt_ms, users) {
  const seed = 100 * num_rows;
  num_rows += 1;
  const tokens = Number(options.tokens), { hub } = one;
  const rates = { off: [], auto: [], drafts: [] }, gaps = { off: [], auto: [] }, firsts = { off: [], auto: [] };
  const { spans: from } = await hub.status();
  for (let i = 0; i < Number(options.repeat); i += 1) {
    for (const spans of acceptance || options.grains === "spans" ? ["auto"] : ["off", "auto"]) {
      const times = { gaps: gaps[spans], firsts: firsts[spans] };
      rates[spans].push(await ask(one, seed + i, tokens, users, spans, times));
    }
  }
  // Each answer is drafted once it was given. The number of drafted tokens is learned on the way.
  for (let i = 0; acceptance && i < Number(options.repeat); i += 1) {
    for (let turn = 0; turn < 3; turn += 1) {
      const rate = await ask(one, seed + i, tokens, users, "auto", { speculative: "auto" });
      if (turn === 2) rates.drafts.push(rate);
    }
  }
  const { spans: now } = await hub.status();
  const later = await laterTurns(one, seed + Number(options.repeat) - 1, tokens, users);
  const used = now.held.filter((span) => span.used);
  const layers = used.reduce((sum, { first_layer, end_layer }) => sum + end_layer - first_layer, 0);
  const trips = used.length + Math.max(0, config.num_layers - layers - Number(options["own-layers"]));
  const [plain, spans] = [median(rates.off), median(rates.auto)];
  if (rtt_ms === 0) ms_at_0.set(users, (1000 * users) / spans);
  const bound = (1000 * users) / (trips * rtt_ms + (ms_at_0.get(users) ?? NaN));
  const [up, down] = [(now.step_bytes - from.step_bytes) / (now.step_rows - from.step_rows),
    (now.answer_bytes - from.answer_bytes) / (now.answer_rows - from.answer_rows)];
  const row_bytes = 4 * config.hidden_size;
  const kv_bytes = 2 * 2 * config.num_kv_heads * config.head_dim * (layers / Math.max(1, used.length));
  const model = basename(options.model) + (in_tabs ? " tab" : "");
  console.log([model, options["own-layers"], options.workers, users, rtt_ms, mbit_per_s,
    used.length, layers, trips, plain?.toFixed(2), spans.toFixed(2), plain ? (spans / plain).toFixed(2) : "",
    (spans / bound).toFixed(2), now.late - from.late, now.failed - from.failed, now.lies - from.lies,
    up.toFixed(0), row_bytes, down.toFixed(0),
    (row_bytes + kv_bytes).toFixed(0), now.kv_bytes - from.kv_bytes, late.share,
    ...["off", "auto"].flatMap((way) => [0.5, 0.99].map((q) => quantile(gaps[way], q)?.toFixed(1))),
    options.prompt, ...["off", "auto"].map((way) => quantile(firsts[way], 0.5)?.toFixed(0)),
    acceptance ? median(rates.drafts).toFixed(2) : "", ...later].join(","));
}

async function measureAll() {
  const one = await swarm();
  try {
    // Weights are loaded and spans proven before the lines are long. Then both ways have other times each time.
    await placed(one);
    await warmUp(one, 1000);
    for (const [i, rtt_ms] of numbers("rtt").entries()) {
      if (i > 0 || rtt_ms > 0 || mbit_per_s > 0) {
        one.lines.forEach((line) => line.set(mbit_per_s > 0 ? { rtt_ms, mbit_per_s } : rtt_ms));
        await warmUp(one, 5000 * (i + 1));
      }
      for (const users of numbers("users")) await measure(one, rtt_ms, users);
    }
  } finally {
    await one.end();
  }
}

try {
  if (with_header) console.log(columns);
  await measureAll();
} finally {
  if (folder) rmSync(folder, { recursive: true });
}
