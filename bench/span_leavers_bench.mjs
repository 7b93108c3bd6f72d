// Ends the holder of whole layers in the midst of answers, with a long context, and counts failed answers, changed
// texts, the stall and the bytes that are sent again.
//   node bench/span_leavers_bench.mjs [--answers 200] [--users 4] [--context 850] [--rtt 60] [--ways kill,stop,close]
//     [--holders 1,2] [--model DIR] [--holder-args "ARGS"] [--header]
// MOEX_BUILD: build folder [build], with moex-hub, moex-worker and delay_line. The hub serves the demo, or the package
// DIR, whose prompts are token ids if it has no tokenizer. It computes no experts itself: one native worker on the
// processor holds them. One or two further ones, on Vulkan, hold layers whole (2 to 6 of the demo); each has a line of
// its own with the given round trip time. All `users` answers run at once, each with a prompt of its own of about
// `context` tokens, which the hub computed before. Once each has 6 pieces of text, and the holder has answered 4 steps
// of them, that holder is ended: by SIGKILL, by SIGSTOP for 20 s, or by cutting its connection. Then another worker
// takes its place. The answers are spread evenly over the cells.
// CSV: a row for each cell. in_midst: answers that still ran then; failed: answers with an error; changed: texts that
// differ from the same prompt's without spans; stall_p50_ms, stall_max_ms: longest pause between two pieces of an
// answer after that; steady_max_ms: the same in answers that nothing disturbs; late, lost: steps that the hub computed
// itself; kv_mb: keys and values sent to workers during these answers; steady_kv_mb: during answers that nothing
// disturbs, since each new sequence's are brought once.
// exit: 1 when an answer failed or a text changed, or a stall was longer than 3 s with one holder or 1 s with two
// example: nice node bench/span_leavers_bench.mjs --header > bench/results/span_leavers.MACHINE.csv
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { readFlags } from "./flags.mjs";

const options = { answers: "200", users: "4", context: "850", rtt: "60", ways: "kill,stop,close", holders: "1,2",
  model: "static/models/demo", "holder-args": "--budget-mb 200" };
const with_header = readFlags("span_leavers_bench", options);
process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, chat } = await import("../tests/browser/support/hub.mjs");
const { farAway } = await import("./far_away.mjs");

const [num_users, context, rtt_ms] = [options.users, options.context, options.rtt].map(Number);
const stall_ms_max = { 1: 3000, 2: 1000 }, stopped_ms = 20_000;
// A holder gets at most 8 MiB of keys and values before each step, and computes no step of a text before it has all.
const more_tokens = 2 * Math.floor(context / 1000), max_tokens = 24 + more_tokens;
const sentences = ["The old man sat by the sea and looked at the ships. ", "A key lay in the garden under a stone. ",
  "The king had two sons, and neither would speak. ", "In the winter the clock stood still for a day. "];
const quantile = (list, q) => [...list].sort((a, b) => a - b)[Math.min(list.length - 1, Math.floor(list.length * q))];

const { config, name: model } = JSON.parse(readFileSync(join(options.model, "manifest.json"), "utf8"));
const has_tokenizer = existsSync(join(options.model, "tokenizer.json"));
const hub = await Hub.start(["--model", options.model, "--arithmetic", "exact", "--speculative", "off",
  "--timeout-ms", "60000", "--round-deadline-s", "300", "--local-fallback", "off", "--spans", "auto",
  "--kv-disk-mb", "0"]);

// A worker on a line of its own.
class Far {
  static async start(args) {
    const far = new Far();
    far.line = await farAway(hub.port, rtt_ms);
    const near = { url: `http://127.0.0.1:${far.line.address().port}`, join: hub.join };
    far.worker = await NativeWorker.start(near, args);
    return far;
  }
  async end() {
    this.worker.child.kill("SIGCONT");
    this.line.close();
    await this.worker.stop("SIGKILL");
  }
}

// The prompt of a user: about `context` tokens, of which the first ones are different for each user.
async function promptOf(user) {
  if (!has_tokenizer)
    return Array.from({ length: context }, (_, i) => (user * 104_729 + i * 7919) % config.vocab_size);
  const count = async (content) => (await (await fetch(`${hub.url}/tokenize`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ content }),
  })).json()).tokens.length;
  let text = `User ${user}. `;
  for (let i = user; await count(text) < context - 40; i += 1) text += sentences[i % sentences.length];
  return `${text}Tell me what happened next.`;
}
const request = (prompt, spans, length = max_tokens) => ({
  model, ...(has_tokenizer ? { messages: [{ role: "user", content: prompt }] } : { prompt }), temperature: 0,
  max_tokens: length, ignore_eos: true, moex: { spans },
});

// Asks for all texts at once. disturb() is called when each answer has 6 pieces and the spans have answered 4 steps
// since then. Resolves to a list of {text, error, in_midst, stall_ms}.
async function askAll(prompts, spans, disturb = null) {
  const streams = prompts.map((prompt) => ({ prompt, count: 0, last: 0, stall_ms: 0, in_midst: false, ended: false }));
  let from = disturb ? null : performance.now();      // pauses count from then on
  const answers = Promise.all(streams.map(async (stream) => {
    const answer = await chat(hub, request(stream.prompt, spans), () => {
      const now = performance.now();
      if (from !== null && stream.last > 0) stream.stall_ms = Math.max(stream.stall_ms, now - stream.last);
      stream.last = now;
      stream.count += 1;
    });
    stream.ended = true;
    return { text: answer.text, error: answer.error, in_midst: stream.in_midst, stall_ms: stream.stall_ms };
  }));
  for (let trips = null; disturb && from === null && !streams.every(({ ended }) => ended); await sleep(20)) {
    if (streams.some(({ count, ended }) => count < 6 && !ended)) continue;
    const status = await hub.status();
    trips ??= status.spans.trips;
    if (status.spans.trips < trips + 4 || !status.spans.held.some(({ used }) => used)) continue;
    from = performance.now();
    for (const stream of streams) stream.in_midst = !stream.ended;
    disturb(status);
  }
  return answers;
}
const spansOf = async () => (await hub.status()).spans;

// Asks until `num_holders` workers hold the layers and have a record, one of them is used, and each expert has two
// workers again, for which it waits 40 s at most: a stall is longer where a worker is the only one with an expert.
async function settle(prompts, num_holders) {
  const patience = performance.now() + 40_000;
  for (;;) {
    const { spans: { held }, coverage } = await hub.status();
    if (held.length === num_holders && held.every(({ proven }) => proven) && held.some(({ used }) => used)
        && (coverage.replicas_min >= 2 || performance.now() > patience)) return;
    await chat(hub, request(prompts[0], "auto", 6 + more_tokens));
  }
}

const holders = new Map();      // nickname -> Far
let started = 0;
async function startHolder() {
  const name = `holder ${started += 1}`;
  holders.set(name, await Far.start(["--nickname", name, ...options["holder-args"].split(" ")]));
}
// Ends the holder that is used, in one of the ways. Resolves when it has ended.
async function endOne(way, { workers, spans }) {
  const used = spans.held.find((span) => span.used && !span.standby) ?? spans.held.find((span) => span.used);
  const { nickname } = workers.find(({ id }) => id === used.worker);
  const far = holders.get(nickname);
  holders.delete(nickname);
  if (way === "kill") far.worker.child.kill("SIGKILL");
  if (way === "close") far.line.close();
  if (way === "stop") {
    far.worker.child.kill("SIGSTOP");
    await sleep(stopped_ms);
  }
  return far;
}

const experts = await Far.start(["--backend", "cpu", "--arithmetic", "exact"]);
let is_right = true;
try {
  const prompts = await Promise.all(Array.from({ length: num_users }, (_, user) => promptOf(user)));
  const texts = [];
  for (const prompt of prompts) {
    const [{ text, error }] = await askAll([prompt], "off");
    if (error) throw new Error(JSON.stringify(error));
    texts.push(text);
  }
  if (with_header)
    console.log("holders,way,answers,in_midst,failed,changed,stall_p50_ms,stall_max_ms,steady_max_ms,late,lost,"
      + "steady_kv_mb,kv_mb");
  const cells = options.holders.split(",").map(Number)
    .flatMap((num) => options.ways.split(",").map((way) => [num, way]));
  const rounds = Math.ceil(Number(options.answers) / num_users / cells.length);
  for (const [num_holders, way] of cells) {
    const sum = { in_midst: 0, failed: 0, changed: 0, late: 0, lost: 0, kv: 0, steady_kv: 0 };
    const stalls = [], steady = [];
    for (let round = 0; round < rounds; round += 1) {
      while (holders.size < num_holders) await startHolder();
      await settle(prompts, num_holders);
      const from = await spansOf();
      for (const { stall_ms } of await askAll(prompts, "auto")) steady.push(stall_ms);
      const undisturbed = await spansOf();
      let ending = null;
      const answers = await askAll(prompts, "auto", (status) => { ending = endOne(way, status); });
      const now = await spansOf();
      for (const [i, { text, error, in_midst, stall_ms }] of answers.entries()) {
        sum.in_midst += in_midst;
        sum.failed += error !== null;
        sum.changed += text !== texts[i];
        if (in_midst) stalls.push(stall_ms);
      }
      sum.late += now.late - undisturbed.late;
      sum.lost += now.failed - undisturbed.failed;
      sum.kv += now.kv_bytes - undisturbed.kv_bytes;
      sum.steady_kv += undisturbed.kv_bytes - from.kv_bytes;
      if (!ending) continue;
      const far = await ending;
      await far.end();
      await hub.until(({ workers }) => workers.length === holders.size + 1, "the end of the holder");
    }
    is_right &&= sum.failed === 0 && sum.changed === 0 && quantile(stalls, 1) <= stall_ms_max[num_holders];
    console.log([num_holders, way, rounds * num_users, sum.in_midst, sum.failed, sum.changed,
      ...[[stalls, 0.5], [stalls, 1], [steady, 1]].map(([list, q]) => quantile(list, q)?.toFixed(0)),
      sum.late, sum.lost, (sum.steady_kv / 1e6).toFixed(1), (sum.kv / 1e6).toFixed(1)].join(","));
  }
} finally {
  for (const far of [...holders.values(), experts]) await far.end();
  await hub.remove();
}
process.exit(is_right ? 0 : 1);
