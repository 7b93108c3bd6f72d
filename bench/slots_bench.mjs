#!/usr/bin/env node
// A native worker that holds all of a model's experts, with GPU memory for some: tokens a second by how much memory,
// who leaves it first, and hints. One hub and one worker on this machine; any package, also one without a tokenizer.
//   node bench/slots_bench.mjs --model DIR [--cells LIST] [--tokens N] [--turns T] [--cell-s S] [--time-limit-s S]
//                              [--host-mb MB] [--keep-mb MB] [--folder DIR] [--out FILE]
//                              [--device NAME] [--backend gpu|cpu] [--header]
// LIST: cells MB:POLICY:HINTS with commas between, in their order. HINTS: off; N or on, as `serve --prefetch` has it;
// N@RECALL, hints of texts that were decoded before, that share of them right (random weights foretell nothing).
// `all:lru:off` is a worker with memory for everything.
// Each cell: a hub, a worker that reads its experts from a folder of all cells, --turns texts once and then all of them
// again, timed, in the same order: before each timed text others were decoded (with --turns 1 none, so use 2 or more).
// Texts are drawn at temperature 1 with a seed each, since a greedy text of random weights soon repeats one token. The
// first round also teaches a replay its routes. A round takes about half of --cell-s at most; the first text says how
// many tokens that is. A row is printed, and appended to --out, when its cell ends; beyond --time-limit-s no further
// cell begins and the one at work is given up. Exits with 1 when a cell's tokens differ from the first cell's.
//   tok_s            of the turn in the middle; tok_s_min, tok_s_max: of the slowest and the fastest
//   missing          experts a token that lay in no slot when their group arrived; late: of these, on their way
//   brought_mb       to slots, a token, for groups and for hints; wasted: experts a token, brought for a hint in vain
//   load_ms          that groups waited for experts, a token
//   load_gb_s        bytes of missing experts by the time that groups waited for them
//   start_s          from the worker's start to all of its experts held
// MOEX_BUILD: build folder [build].
// example: node bench/slots_bench.mjs --model qwen3-30b-a3b --time-limit-s 420 --host-mb 20000 --header
import { appendFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker } = await import("../tests/browser/support/hub.mjs");

const columns = "model,slot_mb,slots,experts,policy,hints,turns,tokens,tok_s,tok_s_min,tok_s_max,asked,missing,late," +
  "brought_mb,wasted,load_ms,load_gb_s,start_s,adapter";
const worth = ["all:lru:off", "2000:lru:off", "2000:lru:8@0.96", "4000:lru:off", "4000:lru:8@0.96", "2000:lru:8@1.0",
  "1000:lru:off", "1000:lru:8@0.96", "4000:lru:8@1.0", "4000:lru:8@0.86", "4000:lru:8@0.79", "8000:lru:off",
  "8000:lru:8@0.96", "1000:cacheless:off", "1000:cacheless:8@0.96", "2000:lru:8@0.86", "2000:lru:8@0.79",
  "4000:lfu:off", "4000:lfu:8@0.96", "2000:lfu:off", "2000:lfu:8@0.96", "16000:lru:off", "16000:lru:8@0.96",
  "8000:lfu:off", "1000:lfu:off", "8000:lfu:8@0.96", "4000:cacheless:off", "4000:cacheless:8@0.96"];
const options = {
  model: "static/models/demo", cells: worth.join(","), tokens: "32", turns: "3", "cell-s": "30", "time-limit-s": "420",
  "host-mb": "20000", "keep-mb": "40000", folder: "", out: "", device: "", backend: "gpu",
};
const with_header = readFlags("slots_bench", options);
const deadline = performance.now() + 1000 * Number(options["time-limit-s"]);
const tokens_max = Number(options.tokens);
const turns = Number(options.turns);
const running = new Set();  // children to end when the time is up
const all_mb = Number(options["keep-mb"]);

const serve = ["--local-fallback", "off", "--replicas", "1", "--timeout-ms", "60000", "--check-answers", "off",
  "--gpu", "off"];

// The tokens of a text as they come, and when, in seconds. It is given up behind `seconds`.
async function decode(hub, model, text, max_tokens, seconds) {
  const giving_up = new AbortController();
  const timer = setTimeout(() => giving_up.abort(), Math.max(0, 1000 * seconds));
  const answer = { ids: [], times: [] };
  try {
    const response = await fetch(`${hub.url}/v1/completions`, {
      method: "POST", headers: { "Content-Type": "application/json" }, signal: giving_up.signal,
      body: JSON.stringify({ model, prompt: [101, 57, 13, 42].map((id) => (id + 7 * text) % 250), max_tokens,
        temperature: 1, seed: text + 1, stream: true, logprobs: 0 }),
    });
    if (!response.ok) throw new Error(await response.text());
    let held = "";
    for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
      held += bytes;
      for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
        const line = held.slice(0, at);
        if (!line.startsWith("data: {")) continue;
        const chunk = JSON.parse(line.slice(6));
        if (chunk.error) throw new Error(JSON.stringify(chunk.error));
        const ids = chunk.choices?.[0]?.logprobs?.tokens ?? [];
        if (ids.length === 0) continue;
        answer.ids.push(...ids);
        answer.times.push(performance.now() / 1000);
      }
    }
  } catch (error) {
    if (!giving_up.signal.aborted) throw error;
  } finally {
    clearTimeout(timer);
  }
  return answer;
}

// What the worker counts, now.
async function figuresOf(worker) {
  const said = () => [...worker.child.printed.matchAll(/^worker: (asked=.*)\n/mg)];
  const before = said().length;
  worker.child.kill("SIGUSR1");
  while (said().length === before) await new Promise((resolve) => worker.child.stderr.once("data", resolve));
  return Object.fromEntries(said().at(-1)[1].split(" ").map((one) => one.split("="))
    .map(([name, value]) => [name, Number(value)]));
}

function settingsOf(cell) {
  const [mb, policy, hints] = cell.split(":");
  const [prefetch, recall] = hints.split("@");
  return { slot_mb: mb === "all" ? all_mb : Number(mb), is_all: mb === "all", policy, hints, prefetch, recall };
}

async function measure(cell, folder) {
  const { slot_mb, is_all, policy, hints, prefetch, recall } = settingsOf(cell);
  const hub = await Hub.start(["--model", options.model, ...serve, "--prefetch", prefetch,
    ...(recall ? ["--prefetch-replay", recall] : [])]);
  running.add(hub.child);
  let worker;
  try {
    const started = performance.now();
    worker = await NativeWorker.start(hub, ["--backend", options.backend, "--cache", folder, "--budget-mb", slot_mb,
      "--evict", policy, ...(is_all ? [] : ["--keep-mb", all_mb, "--host-mb", options["host-mb"]]),
      ...(options.device ? ["--device", options.device] : [])]);
    running.add(worker.child);
    const { model } = await hub.until(({ coverage }) => coverage.replicas_min === 1, "the worker's experts");
    const start_s = (performance.now() - started) / 1000;

    const text_s = () => Math.min(Number(options["cell-s"]) / (2 * turns), left_s());
    const { ids: seen } = await decode(hub, model.name, 0, tokens_max, text_s());
    const count = seen.length;
    if (count < 3) throw new Error(`${cell}: ${count} tokens in a ${2 * turns}th of ${options["cell-s"]} s`);
    for (let text = 1; text < turns; text += 1) await decode(hub, model.name, text, count, left_s());

    const before = await figuresOf(worker);
    const answers = [];
    for (let text = 0; text < turns; text += 1) answers.push(await decode(hub, model.name, text, count, left_s()));
    const figures = await figuresOf(worker);
    for (const name in figures) figures[name] -= before[name];
    await worker.stop();

    const [, units, slots] = [...worker.child.printed.matchAll(/^serving units=(\d+) .* resident=(\d+)$/mg)].at(-1);
    const blob_mb = model.expert_blob_bytes / 1e6;
    return { answers, figures, slots, start_s, blob_mb, hints, policy, slot_mb, units, adapter: worker.adapter };
  } finally {
    await worker?.stop();
    await hub.remove();
  }
}

const left_s = () => (deadline - performance.now()) / 1000;

function rowOf({ answers, figures, slots, start_s, blob_mb, hints, policy, slot_mb, units, adapter }) {
  const tokens = answers.reduce((sum, { ids }) => sum + ids.length, 0);
  const a_token = (value, digits = 2) => (value / tokens).toFixed(digits);
  const speeds = answers.map(({ times }) => (times.length - 1) / (times.at(-1) - times[0])).sort((a, b) => a - b);
  const missing = figures.asked - figures.resident;
  return [basename(options.model), slot_mb, slots, units, policy, hints, turns, answers[0].ids.length,
    ...[speeds[speeds.length >> 1], speeds[0], speeds.at(-1)].map((speed) => speed.toFixed(2)),
    a_token(figures.asked), a_token(missing), a_token(figures.late), a_token(figures.brought * blob_mb, 1),
    a_token(figures.wasted), a_token(figures.load_ms),
    figures.load_ms > 0 ? (missing * blob_mb / figures.load_ms).toFixed(2) : "", start_s.toFixed(1), `"${adapter}"`,
  ].join(",");
}

function say(line) {
  console.log(line);
  if (options.out) appendFileSync(options.out, `${line}\n`);
}

// The cell at work is given up, whatever it waits for.
const watch = setTimeout(() => {
  console.error("slots_bench: the time is up");
  for (const child of running) child.kill("SIGKILL");
  tidy();
  process.exit();
}, 1000 * Number(options["time-limit-s"]));

const folder = options.folder || mkdtempSync(join(tmpdir(), "moex-slots-"));
const tidy = () => options.folder || rmSync(folder, { recursive: true, force: true });
let first;
try {
  if (with_header) say(columns);
  for (const cell of options.cells.split(/[\s,]+/)) {
    if (left_s() < 1) break;
    let measured;
    try {
      measured = await measure(cell, folder);
    } catch (error) {
      console.error(`slots_bench: ${cell}: ${error.message}`);
      continue;
    }
    say(rowOf(measured));
    first ??= measured.answers;
    const same = measured.answers.every(({ ids }, text) =>
      ids.every((id, i) => i >= first[text].ids.length || id === first[text].ids[i]));
    if (!same) {
      console.error(`slots_bench: ${cell}: other tokens than the first cell's`);
      process.exitCode = 1;
    }
  }
} finally {
  clearTimeout(watch);
  tidy();
}
