// Time to the first token of an answer that this device computes alone, that the hub computes, and that the hub reads
// and this device writes (POST /v1/prefill), in a real Chromium behind a line with a round trip and a bandwidth.
//   node bench/hand_off_bench.mjs [--model DIR | --shape NAME] [--lines 20:50,1:1000] [--prompts 128,512,900]
//     [--tokens 32] [--repeat 3] [--rows f16,u8] [--hub-args "ARGS"] [--turns] [--cases 0] [--seed 41]
//     [--header]
// A line is RTT in ms : Mbit/s. NAME as in `moex-hub synth`; such a package gets the demo's tokenizer. Every prompt is
// new, so that neither place has a part of it. MOEX_BUILD: build folder; MOEX_NPM, MOEX_CHROMIUM, MOEX_CHROMIUM_ARGS as
// in tests/browser/support/tab.mjs. CSV: see `columns`; medians over the repeats.
//   first_token_ms  where a token has no text (random weights): from the rate of the tokens behind the first
//   bytes      of the pages that came;  same: answers with the words of the hub's own greedy answer, of all
// --turns: instead a conversation of two turns. This device computes the first one; the second one, with a question of
// as many words as in --prompts, is timed by this device (turn_here), by the hub, which reads all (turn_hub), and by
// the hub with this device's pages (turn_moved, POST /v1/pages). `bytes`: of the pages that went.
// --cases N: instead draws N cases (line, prompt, answer) by the seed, runs each in all three ways, and prints which of
// them the page would have chosen beside the fastest. A hand-off ends once it takes three times as long as the faster
// one of the other ways; its time is then such a limit, with a > before it.
// example: node bench/hand_off_bench.mjs --header
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub } = await import("../tests/browser/support/hub.mjs");
const { launchQuiet } = await import("./bench_browser.mjs");
const { slowLine } = await import("./slow_line.mjs");
const { synthChat } = await import("./synth_chat.mjs");

const columns = "model,adapter,rtt_ms,mbit_per_s,prompt_tokens,way,rows,first_token_ms,total_ms,answer_tokens,bytes,"
  + "same";
const case_columns = "model,adapter,case,rtt_ms,mbit_per_s,prompt_tokens,answer_tokens,here_ms,hub_ms,handed_ms,"
  + "fastest,chosen,measured,by_thresholds,loss";
const options = {
  model: "static/models/demo", shape: "", lines: "20:50,1:1000", prompts: "128,512,900", tokens: "32", repeat: "3",
  rows: "f16,u8", "hub-args": "", cases: "0", seed: "41",
};
const has_turns = process.argv.includes("--turns");
if (has_turns) process.argv.splice(process.argv.indexOf("--turns"), 1);
const with_header = readFlags("hand_off_bench", options);
const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];
const words = (text) => text.split(" ").filter(Boolean);

// A package of random weights with the demo's tokenizer, so that a chat is possible.
let folder = null;
if (options.shape) {
  folder = mkdtempSync(join(tmpdir(), "moex-hand-off-"));
  options.model = join(folder, options.shape);
  await synthChat(options.shape, options.model, ["--hub-dtype", "int8", "--expert-dtype", "bf16"]);
}

const hub = await Hub.start(["--model", options.model, "--backend", "local", "--speculative", "off",
  ...words(options["hub-args"])]);
const line = await slowLine(hub.port);
const browser = await launchQuiet();
const page = await browser.newPage();
page.setDefaultTimeout(0);
await page.goto(`http://127.0.0.1:${line.port}/status.html`);

// The page's side: the worker of "this device", and answers in a given way.
await page.evaluate(() => {
  const worker = new Worker("wasm/local_worker.js", { type: "module" });
  const { port1: port, port2 } = new MessageChannel();
  const post = (type, payload) => port.postMessage({ type, sessionId: "bench", payload });
  const heard = [];
  let wake = () => {};
  port.onmessage = ({ data: { payload } }) => {
    heard.push({ at: performance.now(), ...payload });
    wake();
  };
  worker.postMessage({ type: "CONNECT" }, [port2]);
  worker.onerror = (event) => {
    heard.push({ failed: { code: "error", message: event.message } });
    wake();
  };
  const next = async (...names) => {
    for (;;) {
      while (heard.length > 0) {
        const one = heard.shift();
        if (one.failed || one.refused) throw new Error(JSON.stringify(one));
        if (names.some((name) => one[name] !== undefined)) return one;
      }
      await new Promise((done) => { wake = done; });
    }
  };
  globalThis.load = async () => {
    navigator.locks.request("moex-session-bench", () => new Promise(() => {}));
    post("START_SESSION", { key: "", hub_key: "" });
    await next("looked");
    post("LOAD", { key: "", context_tokens_max: 4096 });
    return (await next("ready")).ready;
  };
  globalThis.otherLine = () => post("CONNECTION");
  let num_answers = 0;
  globalThis.answer = async (body, wish, limit_ms) => {
    const began = performance.now(), id = num_answers += 1;
    let first_ms = 0, text = "", placed = null;
    post("GET_TOKEN", { answer: id, body, conversation: body.messages[0].content, wish });
    const limit = limit_ms ? setTimeout(() => post("CANCEL", { answer: id }), limit_ms) : 0;
    for (;;) {
      const one = await next("placed", "text", "ended");
      if (one.placed) placed = one;
      if (one.placed === "hub") {
        await next("ended");
        break;
      }
      if (one.text !== undefined) {
        first_ms ||= one.at - began;
        text += one.text;
      }
      if (one.ended) {
        clearTimeout(limit);
        if (one.ended.finish_reason === "cancelled") return { placed, is_cut: true, total_ms: limit_ms };
        const total_ms = one.at - began, { completion_tokens: count, tokens_per_s } = one.ended;
        first_ms ||= total_ms - (tokens_per_s > 0 ? 1000 * (count - 1) / tokens_per_s : 0);
        return { placed, first_ms, total_ms, text, ended: one.ended };
      }
    }
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        ...body, stream: true, stream_options: { include_usage: true },
        moex: placed.sent_as ? { pages: placed.sent_as } : {},
      }),
    });
    let rest = "", timings = null, usage = null;
    for (const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const one of lines) {
        if (!one.startsWith("data: {")) continue;
        const event = JSON.parse(one.slice(6));
        const delta = event.choices?.[0]?.delta ?? {};
        const fresh = (delta.reasoning_content ?? "") + (delta.content ?? "");
        if (fresh) first_ms ||= performance.now() - began;
        text += fresh;
        timings = event.timings ?? timings;
        usage = event.usage ?? usage;
      }
    }
    const total_ms = performance.now() - began;
    first_ms ||= total_ms - 1000 * (timings.predicted_n - 1) / timings.predicted_per_second;
    return { placed, first_ms, total_ms, text, timings, ended: usage };
  };
});

const { context_tokens, adapter } = await page.evaluate(() => globalThis.load());
const info = await (await fetch(`${hub.url}/api/info`)).json();
const adapter_name = adapter.replaceAll(",", " ");

// Every prompt begins with its number, so that no two begin alike.
let num_prompts = 0;
function promptOf(num_tokens) {
  num_prompts += 1;
  const part = "the old keeper walked along the wall and looked at the sea ";
  return `${num_prompts} ${part.repeat(Math.ceil(num_tokens / 12))}`.split(" ").slice(0, num_tokens).join(" ");
}

const hub_speed = { prompt_tokens_per_s: 0, answer_tokens_per_s: 0 };
const asked = (content) => [{ role: "user", content }];
async function answer(way, messages, max_tokens, rows, sends, limit_ms = 0) {
  const body = { messages, max_tokens, temperature: 0 };
  const wish = {
    words: "to_hub", hub_answers: true, hub_context_tokens: info.context_tokens, answer_tokens: max_tokens,
    hub: hub_speed, place: way, rows, sends,
  };
  const one = await page.evaluate((given) => globalThis.answer(...given), [body, wish, limit_ms]);
  if (one.timings?.prompt_n >= 16) {
    hub_speed.prompt_tokens_per_s = Math.max(one.timings.prompt_per_second, hub_speed.prompt_tokens_per_s * 0.9);
  }
  if (one.timings?.predicted_n >= 16) hub_speed.answer_tokens_per_s = one.timings.predicted_per_second;
  return one;
}

// The words of the hub for a prompt that it has not read before: asked afterwards, and not timed.
async function hubsWords(messages, max_tokens) {
  const response = await fetch(`${hub.url}/v1/chat/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ messages, max_tokens, temperature: 0 }),
  });
  const { message } = (await response.json()).choices[0];
  return (message.reasoning_content ?? "") + (message.content ?? "");
}

async function setLine(rtt_ms, mbit_per_s) {
  line.set({ rtt_ms, mbit_per_s });
  await page.evaluate(() => globalThis.otherLine());
}

async function measureLine(text) {
  const [rtt_ms, mbit_per_s] = text.split(":").map(Number);
  await setLine(rtt_ms, mbit_per_s);
  const ways = [["here", ""], ["hub", ""], ...options.rows.split(",").map((rows) => ["handed", rows])];
  for (const num_tokens of options.prompts.split(",").map(Number)) {
    const found = ways.map(() => []);
    for (let i = 0; i < Number(options.repeat); i += 1)
      for (const [k, [way, rows]] of ways.entries()) {
        const messages = asked(promptOf(num_tokens));
        const one = await answer(way, messages, Number(options.tokens), rows || undefined, "");
        if (one.placed?.trouble) throw new Error(one.placed.trouble);
        found[k].push({ ...one, is_same: one.text === await hubsWords(messages, Number(options.tokens)) });
      }
    print(rtt_ms, mbit_per_s, ways, found, ({ placed }) => placed?.handed_bytes ?? 0);
  }
}

function print(rtt_ms, mbit_per_s, ways, found, bytesOf) {
  for (const [k, [way, rows]] of ways.entries()) {
    const of = (read) => median(found[k].map(read));
    console.log([basename(options.model), adapter_name, rtt_ms, mbit_per_s,
      of(({ ended }) => ended.prompt_tokens), way, rows, of(({ first_ms }) => first_ms).toFixed(0),
      of(({ total_ms }) => total_ms).toFixed(0), of(({ ended }) => ended.completion_tokens), of(bytesOf),
      `${found[k].filter(({ is_same }) => is_same).length}/${found[k].length}`].join(","));
  }
}

async function measureTurns(text) {
  const [rtt_ms, mbit_per_s] = text.split(":").map(Number);
  await setLine(rtt_ms, mbit_per_s);
  const ways = [["turn_here", ""], ["turn_hub", ""], ...options.rows.split(",").map((rows) => ["turn_moved", rows])];
  const max_tokens = Number(options.tokens);
  for (const num_tokens of options.prompts.split(",").map(Number)) {
    const found = ways.map(() => []);
    for (let i = 0; i < Number(options.repeat); i += 1)
      for (const [k, [way, rows]] of ways.entries()) {
        const first = asked(promptOf(num_tokens));
        const { text: said } = await answer("here", first, 16);
        const messages = [...first, { role: "assistant", content: said }, ...asked("And what did he see then?")];
        const one = await answer(way === "turn_here" ? "here" : "hub", messages, max_tokens, undefined, rows);
        if (one.placed?.trouble) throw new Error(one.placed.trouble);
        found[k].push({ ...one, is_same: one.text === await hubsWords(messages, max_tokens) });
      }
    print(rtt_ms, mbit_per_s, ways, found, ({ placed }) => placed?.sent_bytes ?? 0);
  }
}

// The random numbers of mulberry32.
let state = Number(options.seed);
function random() {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
const between = (low, high) => Math.exp(Math.log(low) + random() * (Math.log(high) - Math.log(low)));

const first_hand_off_ms_max = 5000;
async function measureCase(number) {
  const rtt_ms = Math.round(between(1, 120)), mbit_per_s = Math.round(between(5, 1000));
  const num_tokens = Math.round(between(32, context_tokens - 100)), max_tokens = Math.round(between(16, 64));
  await setLine(rtt_ms, mbit_per_s);
  // A user of this line has been answered by each way before; this also measures the line.
  for (const way of ["here", "hub", "handed"])
    await answer(way, asked(promptOf(200)), 16, undefined, "", way === "handed" ? first_hand_off_ms_max : 0);
  const ways = {};
  let choice = null;
  for (const way of ["here", "hub", "handed"]) {
    const limit_ms = way === "handed" ? 3 * Math.min(ways.here.total_ms, ways.hub.total_ms) : 0;
    const times = [];
    for (let i = 0; i < Number(options.repeat); i += 1) {
      const one = await answer(way, asked(promptOf(num_tokens)), max_tokens, undefined, "", limit_ms);
      choice ??= one.placed;
      times.push(one);
    }
    times.sort((a, b) => a.total_ms - b.total_ms);
    const { total_ms, ended, is_cut } = times[times.length >> 1];
    ways[way] = { total_ms, ...ended, printed: `${is_cut ? ">" : ""}${total_ms.toFixed(0)}` };
  }
  const fastest = Object.keys(ways).sort((a, b) => ways[a].total_ms - ways[b].total_ms)[0];
  const loss = ways[choice.chosen].total_ms / ways[fastest].total_ms;
  console.log([basename(options.model), adapter_name, number, rtt_ms, mbit_per_s, ways.here.prompt_tokens,
    max_tokens, ...Object.values(ways).map(({ printed }) => printed), fastest, choice.chosen,
    choice.is_measured, choice.by_thresholds, loss.toFixed(3)].join(","));
  return { is_right: fastest === choice.chosen, loss };
}

try {
  const num_cases = Number(options.cases);
  if (with_header) console.log(num_cases > 0 ? case_columns : columns);
  const measure = has_turns ? measureTurns : measureLine;
  if (num_cases === 0) for (const text of options.lines.split(",")) await measure(text);
  const results = [];
  for (let i = 0; i < num_cases; i += 1) results.push(await measureCase(i));
  if (num_cases > 0) {
    const share = (is) => (results.filter(is).length / num_cases).toFixed(3);
    console.log(`# seed ${options.seed}: the fastest way in ${share(({ is_right }) => is_right)}, within 5 % of it in `
      + share(({ loss }) => loss < 1.05));
  }
} finally {
  await browser.close();
  line.close();
  await hub.remove();
  if (folder) rmSync(folder, { recursive: true });
}
