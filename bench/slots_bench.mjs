#!/usr/bin/env node
// Measures native workers that hold all of a model's experts on disk or in host memory, with GPU memory for some:
// tokens a second by GPU memory, eviction policy and hints. One hub and its workers run on this machine. Any package
// works, also one without a tokenizer. A "cell" is one measured configuration.
//   node bench/slots_bench.mjs --model DIR [--cells LIST] [--tokens N] [--turns T] [--cell-s S] [--time-limit-s S]
//                              [--host-mb MB] [--keep-mb MB] [--folder DIR] [--out FILE]
//                              [--context LIST] [--prompts LIST] [--answers LIST] [--rounds R] [--settle N]
//                              [--device NAME] [--backend gpu|cpu|tab] [--processes each|one] [--header]
//                              [--hub-args "FLAGS OF SERVE"]
// --cells LIST: cells MB:POLICY:HINTS[:WORKERS[/GROUPS]], separated by commas, in the order of the rows. MB is the GPU
// memory of each worker. `all:lru:off` is a worker with memory for all experts. WORKERS [1] workers share the layers.
// Where GROUPS are given, `serve --placement "groups GROUPS"` assigns the layers, so that hints lead by GROUPS layers.
// HINTS is one of:
//   off              no hints
//   N or on          as in `serve --prefetch`
//   N@RECALL         replays the routes of texts that were decoded before, with that share of the hints right (random
//                    weights predict nothing); N@RECALL+1 also replays the next token's first layers before that token
//                    is drawn
//   shadow=DIR       the hints of a shadow
// --host-mb: host memory for blobs, of all workers together.
// --context 1024,8192,65536: measures each cell behind prompts of these lengths, a row each. Keys and values of all
// rows but the prompt's last are noise: reading them takes as long as for a real text, and they need not be computed
// (`synth --context 70000` makes a package with such a context). --prompts 16,128: the same, with prompts of random ids
// that are computed. --answers 64,256: lengths of answers, instead of --tokens.
// --rounds R: each text is timed R times; with --turns 3 --rounds 3 tok_s_mean and _sd are over 9 times.
// --settle N [0]: decodes the texts N more times before they are timed. A worker's trials of transfers and of hints run
// soon after its start, and then ever more rarely.
// --hub-args: further flags of `serve`. No expert gets a second replica: sums in another order would give other texts,
// which a replay does not know.
// --processes one [each]: all workers of a cell run in one process (`moex-worker --workers`) and share its device.
// Processes of their own would use one GPU alternately, which workers of a swarm do not.
// --backend tab: the worker is a tab of Chromium (MOEX_CHROMIUM, MOEX_CHROMIUM_ARGS, MOEX_NPM [build/npm]) that keeps
// --keep-mb in its own store, and --host-mb of that in memory; the folder is not read.
// Each cell starts a hub and a worker that reads its experts from a folder of all cells. It decodes --turns texts once
// and then all of them again, timed, in the same order, so that other texts precede each timed text (with --turns 1 no
// other text does: use 2 or more). Texts are drawn at temperature 1 with a seed each, since a greedy text of random
// weights soon repeats one token. The first round also records the routes for a replay. A round takes about half of
// --cell-s at most; the first text determines the number of tokens. A row is printed, and appended to --out, when its
// cell ends. After --time-limit-s no further cell begins, and the running cell is abandoned.
// exit: 1 when a cell's tokens differ from the first cell's tokens, both with one worker and without --prompts. In
// other cases tokens may differ, since the sums of several workers, and of a prompt's rows that a worker with little
// memory computes in parts, are added in another order.
// CSV columns:
//   in, tokens       number of tokens of the prompt, and of an answer
//   tok_s            tokens a second of the median turn; tok_s_min, tok_s_max: of the slowest and the fastest turn;
//                    tok_s_mean, _sd: mean and standard deviation over turns
//   ttft_ms, all_tok_s  time to the first token; tokens of an answer by its whole time; both of the median turn
//   missing          experts per token that had no slot when their group arrived; late: those with a copy in flight
//   brought_mb       MB copied to slots per token, for groups and for hints; wasted: experts per token that were copied
//                    for a hint and not used
//   load_ms          time per token that groups waited for experts
//   load_gb_s        bytes of missing experts by the time that groups waited for them
//   start_s          time from the workers' start until all experts are held, each in its place
//   hub_ms_token, work_ms_token, copy_ms_token  parts of a token's time (prompt included): the hub's own, the workers'
//                    without their waits, and the waits for experts, added over workers; idle_ms_token: the remaining
//                    time, which is round trips and queues, and zero where the workers' times overlap
//   gain, bound      gain: the share of a token's time that hints save, against the preceding cell with the same
//                    memory, policy, workers and text without hints; bound: the most that hints could save, which is
//                    the lesser of the copy time and all other time of that cell, over their sum
//   hub_mb, worker_mb  resident memory of the hub and of all native workers; slots x an expert is the memory on GPUs
//   by_gpu           share of copied bytes that the GPU copied itself, beside its computing
//   wait_ms          time that a group which needed missing experts waited; window_ms: the time within which a right
//                    hint must bring an expert to avoid the wait, computed from hub_ms, worker_ms (times of hub and
//                    worker for a layer) and trip_ms (the round trip)
// MOEX_BUILD: build folder [build].
// example: node bench/slots_bench.mjs --model qwen3-30b-a3b --time-limit-s 420 --host-mb 20000 --header
import {
  appendFileSync, existsSync, linkSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker } = await import("../tests/browser/support/hub.mjs");

const columns = "model,slot_mb,slots,experts,policy,hints,turns,tokens,tok_s,tok_s_min,tok_s_max,asked,missing,late," +
  "brought_mb,wasted,load_ms,load_gb_s,start_s,workers,groups,wait_ms,window_ms,hub_ms,worker_ms,trip_ms,in,"
  + "tok_s_mean,tok_s_sd,ttft_ms,all_tok_s,hub_ms_token,work_ms_token,copy_ms_token,idle_ms_token,gain,bound,hub_mb,"
  + "worker_mb,by_gpu,adapter";
const worth = ["all:lru:off", "2000:lru:off", "2000:lru:8@0.96", "4000:lru:off", "4000:lru:8@0.96", "2000:lru:8@1.0",
  "1000:lru:off", "1000:lru:8@0.96", "4000:lru:8@1.0", "4000:lru:8@0.86", "4000:lru:8@0.79", "8000:lru:off",
  "8000:lru:8@0.96", "1000:cacheless:off", "1000:cacheless:8@0.96", "2000:lru:8@0.86", "2000:lru:8@0.79",
  "4000:lfu:off", "4000:lfu:8@0.96", "2000:lfu:off", "2000:lfu:8@0.96", "16000:lru:off", "16000:lru:8@0.96",
  "8000:lfu:off", "1000:lfu:off", "8000:lfu:8@0.96", "4000:cacheless:off", "4000:cacheless:8@0.96", "16000:lfu:off",
  "16000:lfu:8@0.96", "16000:cacheless:off", "16000:cacheless:8@0.96"];
const options = {
  model: "static/models/demo", cells: worth.join(","), tokens: "32", turns: "3", "cell-s": "30", "time-limit-s": "420",
  "host-mb": "20000", "keep-mb": "40000", folder: "", out: "", device: "", backend: "gpu", context: "", prompts: "",
  answers: "", rounds: "1", settle: "0", processes: "each", "hub-args": "",
};
const with_header = readFlags("slots_bench", options);
const { startTab } = options.backend === "tab" ? await import("./bench_tab.mjs") : {};
const { launchQuiet } = options.backend === "tab" ? await import("./bench_browser.mjs") : {};
const deadline = performance.now() + 1000 * Number(options["time-limit-s"]);
const tokens_max = Number(options.tokens);
const turns = Number(options.turns);
const rounds = Number(options.rounds);
const listOf = (text) => text.split(",").filter(Boolean).map(Number);
// The requests that each cell (configuration) is measured with: lengths of prompts and of answers.
const asks = listOf(options.context || options.prompts || "4").flatMap((prompt) =>
  listOf(options.answers || options.tokens).map((answer) => ({ prompt, answer })));
const running = new Set();  // child processes to end when the time limit is reached
const all_mb = Number(options["keep-mb"]);

const serve = ["--local-fallback", "off", "--replicas", "1", "--timeout-ms", "60000", "--check-answers", "off",
  "--gpu", "off"];

// Returns the prompt of text number `text`; its last token differs from that of every other text.
function promptOf(text, length) {
  if (length === 4) return [101, 57, 13, 42].map((id) => (id + 7 * text) % 250);
  let state = text + 1;
  const ids = Array.from({ length }, () => (state = (state * 48271) % 2147483647) % 250);
  ids[length - 1] = text;
  return ids;
}

// Streams a text. Resolves to its tokens and their arrival times in seconds. The stream is abandoned after `seconds`.
async function decode(hub, model, text, { prompt, answer: max_tokens }, seconds) {
  const giving_up = new AbortController();
  const timer = setTimeout(() => giving_up.abort(), Math.max(0, 1000 * seconds));
  const answer = { ids: [], times: [], begun: performance.now() / 1000 };
  try {
    const response = await fetch(`${hub.url}/v1/completions`, {
      method: "POST", headers: { "Content-Type": "application/json" }, signal: giving_up.signal,
      body: JSON.stringify({ model, prompt: promptOf(text, prompt), max_tokens, temperature: 1,
         seed: text + 1, stream: true, logprobs: 0 }),
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

// Returns the present sums of the counters of all workers.
async function figuresOfAll(workers) {
  const figures = await Promise.all(workers.map(figuresOf));
  return figures.reduce((sum, one) =>
    Object.fromEntries(Object.keys(one).map((name) => [name, sum[name] + one[name]])));
}

async function figuresOf(worker) {
  if (worker.status) {
    const { slots } = await worker.status();
    return { ...slots, brought: slots.asked - slots.resident + slots.prefetched };
  }
  const said = () => [...worker.child.printed.matchAll(/^worker: (asked=.*)\n/mg)];
  const before = said().length;
  worker.child.kill("SIGUSR1");
  while (said().length === before) await new Promise((resolve) => worker.child.stderr.once("data", resolve));
  return Object.fromEntries(said().at(-1)[1].split(" ").map((one) => one.split("="))
    .map(([name, value]) => [name, Number(value)]));
}

// Returns the number of experts that the worker holds, and the number of those that are in memory.
async function servedBy(worker) {
  if (worker.status) {
    const { units_ready, units_resident } = await worker.status();
    return [units_ready, units_resident];
  }
  return [...worker.child.printed.matchAll(/^serving units=(\d+) .* resident=(\d+)$/mg)].at(-1).slice(1).map(Number);
}

// Sets memory limits of a page's worker that the page's sliders do not offer.
const limited = (limits) => {
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function(message, ...rest) {
    post.call(this, message.type === "start" ? { ...message, ...limits } : message, ...rest);
  };
};
async function startLimitedTab(hub, { slot_mb, is_all, policy }, host_mb) {
  const limits = { budget_bytes: 1e6 * slot_mb, keep_bytes: is_all ? 0 : 1e6 * all_mb, eviction: policy,
    host_bytes: is_all ? 0 : 1e6 * host_mb };
  const browser = await launchQuiet();
  const stop = () => browser.close();
  try {
    const prepare = (page) => page.evaluateOnNewDocument(limited, limits);
    const { status } = await startTab(hub, { browser, prepare });
    const { adapter } = await status();
    return { status, stop, adapter: `Chromium, ${adapter.vendor} ${adapter.description}`.trim() };
  } catch (error) {
    await stop();
    throw error;
  }
}

function settingsOf(cell) {
  const [mb, policy, hints, swarm = "1"] = cell.split(":");
  const [prefetch, recall] = hints.split("@");
  const [workers, groups = 0] = swarm.split("/").map(Number);
  const slot_mb = mb === "all" ? all_mb : Number(mb);
  return { slot_mb, is_all: mb === "all", policy, hints, prefetch: prefetch.replaceAll("=", ":"), recall, workers,
    groups };
}

// Makes hard links to the files of one folder in another folder, so that they take disk space once.
function share(from, to) {
  mkdirSync(to, { recursive: true });
  for (const name of readdirSync(from))
    if (/^[0-9a-f]{64}$/.test(name) && !existsSync(join(to, name))) linkSync(join(from, name), join(to, name));
}

// Starts a hub and its workers; resolves when the workers hold every expert in its place (slot, memory or disk).
async function startSwarm(cell, folder) {
  const settings = settingsOf(cell);
  const { slot_mb, is_all, policy, prefetch, recall, workers, groups } = settings;
  const hub = await Hub.start(["--model", options.model, ...serve, "--prefetch", prefetch,
    "--workers-per-address", "64", "--hot-copies", "0", ...(recall ? ["--prefetch-replay", recall] : []),
    ...(groups > 0 ? ["--placement", `groups ${groups}`] : []),
    ...options["hub-args"].split(" ").filter(Boolean),
    ...(options.context ? ["--noise-prompts"] : []), ...(options.prompts ? ["--prefix-cache", "off"] : [])]);
  running.add(hub.child);
  const host_mb = Math.floor(Number(options["host-mb"]) / workers);
  // each worker has a key of its own
  const folders = Array.from({ length: workers }, (_, i) => join(folder, `worker-${i}`));
  for (const own of folders) share(folder, own);
  const one = ["--backend", options.backend, "--budget-mb", slot_mb, "--evict", policy, ...(is_all ? []
    : ["--keep-mb", all_mb, "--host-mb", host_mb]), ...(options.device ? ["--device", options.device] : [])];
  const started = performance.now();
  const starting = options.processes === "one" && workers > 1
    ? [NativeWorker.start(hub, [...one, "--workers", workers, "--cache", folder])]
    : folders.map((own) => options.backend === "tab" ? startLimitedTab(hub, settings, host_mb)
      : NativeWorker.start(hub, [...one, "--cache", own]));
  const joined = (await Promise.allSettled(starting)).flatMap(({ value }) => value ?? []);
  for (const { child } of joined) if (child) running.add(child);
  const swarm = { hub, workers: joined, start_s: 0, model: null };
  try {
    if (joined.length < starting.length) throw new Error(`${joined.length} of ${starting.length} workers came`);
    swarm.model = (await hub.until(({ coverage, workers: seen }) => coverage.replicas_min === 1 && coverage.away === 0
      && seen.every(({ units_assigned, units_ready }) => units_assigned === units_ready), "the experts")).model;
  } catch (error) {
    await stopSwarm(swarm);
    throw error;
  }
  swarm.start_s = (performance.now() - started) / 1000;
  for (const own of folders) share(own, folder);
  return swarm;
}

async function stopSwarm({ hub, workers }) {
  await Promise.all(workers.map((worker) => worker.stop()));
  await hub.remove();
}

// Returns the computing times that the hub and all workers have reported so far, in ms; the workers' times exclude
// waits. `figures`: the counters that the workers have reported by now.
async function timesOf(hub, figures) {
  const { engine, calls } = await hub.until(({ calls: { on_demand } }) => on_demand.asked >= figures.asked, "figures");
  return { hub: 1000 * (engine.steps_s - engine.experts_waited_s), calls,
    work: calls.load_window.worker_ms * calls.groups_answered };
}

// Returns the resident memory of a process in MB.
function residentMb({ child }) {
  if (!child) return 0;
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${child.pid}/status`, "utf8"))[1]) / 1000;
}

// Measures one row of the CSV: decodes the texts once, which records their routes for a replay, and then again, which
// is timed.
async function ask({ hub, workers, model }, wanted) {
  const text_s = () => Math.min(Number(options["cell-s"]) / (turns * (rounds + 1)), left_s());
  const { ids: seen } = await decode(hub, model.name, 0, wanted, text_s());
  const count = seen.length;
  if (count < 3) throw new Error(`${count} tokens in ${text_s().toFixed(1)} s`);
  const again = { ...wanted, answer: count };
  const settling = turns * Number(options.settle);
  for (let text = 1; text < turns + settling; text += 1) await decode(hub, model.name, text % turns, again, left_s());

  const before = await figuresOfAll(workers);
  const times_before = await timesOf(hub, before);
  const answers = [];
  for (let i = 0; i < turns * rounds; i += 1)
    answers.push(await decode(hub, model.name, i % turns, again, left_s()));
  const figures = await figuresOfAll(workers);
  const { calls, ...times } = await timesOf(hub, figures);
  for (const name in figures) figures[name] -= before[name];
  for (const name in times) times[name] -= times_before[name];
  const memory = { hub_mb: residentMb(hub), worker_mb: workers.reduce((sum, one) => sum + residentMb(one), 0) };
  return { ...wanted, answers, figures, times, calls, ...memory };
}

// Measures a cell (configuration): prints a row for each request of `asks`, until one is abandoned.
async function measure(cell, folder) {
  const swarm = await startSwarm(cell, folder);
  const { workers, model, start_s } = swarm;
  try {
    const asked = [];
    for (const wanted of asks) {
      if (left_s() < 1) break;
      try {
        asked.push(await ask(swarm, wanted));
      } catch (error) {
        console.error(`slots_bench: ${cell}, ${wanted.prompt} in, ${wanted.answer} out: ${error.message}`);
        break;
      }
    }
    if (options.backend !== "tab") await Promise.all(workers.map((worker) => worker.stop()));
    const served = await Promise.all(workers.map(servedBy));
    const [units, slots] = [0, 1].map((at) => served.reduce((sum, said) => sum + said[at], 0));
    const blob_mb = model.expert_blob_bytes / 1e6;
    const { adapter } = workers[0];
    return asked.map((one) => ({ ...settingsOf(cell), ...one, slots, units, start_s, blob_mb, adapter }));
  } finally {
    await stopSwarm(swarm);
  }
}

const left_s = () => (deadline - performance.now()) / 1000;

// Returns the parts of a token's time in ms; all rows of the prompt count as one token.
function timesOfToken({ answers, figures, times }) {
  const tokens = answers.reduce((sum, { ids }) => sum + ids.length, 0);
  const all = answers.reduce((sum, answer) => sum + 1000 * (answer.times.at(-1) - answer.times[0]), 0)
    / (tokens - answers.length);
  const [hub, work, copy] = [times.hub, times.work, figures.load_ms].map((ms) => Math.max(0, ms) / tokens);
  return { all, hub, work, copy, idle: Math.max(0, all - hub - work - copy) };
}

// Returns the share of a token's time that hints save, and the upper bound of this share, by comparison with the cell
// without hints.
const without_hints = new Map();
function gainOf(row, { all, copy }) {
  const { slot_mb, policy, workers, groups, prompt, answer, hints } = row;
  const key = JSON.stringify([slot_mb, policy, workers, groups, prompt, answer]);
  if (hints === "off") without_hints.set(key, { all, copy });
  const off = without_hints.get(key);
  if (hints === "off" || !off) return ["", ""];
  return [1 - all / off.all, Math.min(off.copy, off.all - off.copy) / off.all].map((share) => share.toFixed(3));
}

function rowOf(row) {
  const { answers, figures, slots, start_s, blob_mb, calls, hints, policy, slot_mb, units, workers, groups, prompt,
    hub_mb, worker_mb, adapter } = row;
  const tokens = answers.reduce((sum, { ids }) => sum + ids.length, 0);
  const a_token = (value, digits = 2) => (value / tokens).toFixed(digits);
  const sorted = (of) => answers.map(of).sort((a, b) => a - b);
  const middle = (values) => values[values.length >> 1];
  const speeds = sorted(({ times }) => (times.length - 1) / (times.at(-1) - times[0]));
  const mean = speeds.reduce((sum, one) => sum + one, 0) / speeds.length;
  const spread = Math.sqrt(speeds.reduce((sum, one) => sum + (one - mean) ** 2, 0) / Math.max(1, speeds.length - 1));
  const ttft_ms = middle(sorted(({ times, begun }) => 1000 * (times[0] - begun)));
  const all_tok_s = middle(sorted(({ ids, times, begun }) => ids.length / (times.at(-1) - begun)));
  const missing = figures.asked - figures.resident;
  const window = calls.load_window;
  const token = timesOfToken(row);
  return [basename(options.model), slot_mb, slots, units, policy, hints, turns, answers[0].ids.length,
    ...[middle(speeds), speeds[0], speeds.at(-1)].map((speed) => speed.toFixed(2)),
    a_token(figures.asked), a_token(missing), a_token(figures.late), a_token(figures.brought * blob_mb, 1),
    a_token(figures.wasted), a_token(figures.load_ms),
    figures.load_ms > 0 ? (missing * blob_mb / figures.load_ms).toFixed(2) : "", start_s.toFixed(1), workers, groups,
    ...[calls.on_demand.load_ms, window.most_ms, window.hub_ms, window.worker_ms, window.trip_ms]
      .map((ms) => ms.toFixed(2)), prompt,
    ...[mean, spread, ttft_ms, all_tok_s, token.hub, token.work, token.copy, token.idle].map((one) => one.toFixed(2)),
    ...gainOf(row, token), ...[hub_mb, worker_mb].map((mb) => mb.toFixed(0)),
    figures.brought > 0 ? ((figures.by_gpu ?? 0) / figures.brought).toFixed(2) : "",
    `"${adapter}"`,
  ].join(",");
}

function say(line) {
  console.log(line);
  if (options.out) appendFileSync(options.out, `${line}\n`);
}

// Ends the bench at its time limit, even in the middle of a cell (one measured configuration).
const watch = setTimeout(() => {
  console.error("slots_bench: the time is up");
  for (const child of running) child.kill("SIGKILL");
  tidy();
  process.exit();
}, 1000 * Number(options["time-limit-s"]));

const folder = options.folder || mkdtempSync(join(tmpdir(), "moex-slots-"));
const tidy = () => options.folder || rmSync(folder, { recursive: true, force: true });
// The tokens that the first cell (configuration) decoded, keyed by request.
const first = new Map();
function compare(cell, { prompt, answer, answers }) {
  const key = `${prompt} ${answer}`;
  if (!first.has(key)) first.set(key, answers);
  const same = answers.every(({ ids }, text) => {
    const wanted = first.get(key)[text]?.ids ?? [];
    return ids.every((id, i) => i >= wanted.length || id === wanted[i]);
  });
  if (same) return;
  console.error(`slots_bench: ${cell}: other tokens than the first cell's`);
  process.exitCode = 1;
}

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
    for (const row of measured) {
      say(rowOf(row));
      if (row.workers === 1 && !options.prompts) compare(cell, row);
    }
  }
} finally {
  clearTimeout(watch);
  tidy();
}
