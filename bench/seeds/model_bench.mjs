#!/usr/bin/env node
// Measures eq. 10 to 13 and 17 of "MoEx" (000) on a real swarm: the time of a pass as predicted from the workers'
// answer times, beside the measured time.
//   usage: MOEX_BUILD=build node bench/seeds/model_bench.mjs [turns] [seconds] [hedge]        [3 4 all]
// Runs a hub, native workers on the processor, and between them a proxy with a round trip time. `moex-hub model
// --from-metrics` watches the hub for `seconds`, while the hub decodes one text after the other or reads prompts.
// Prints CSV, a row for each condition, with medians of the turns:
//   work              decode: one row a pass; prefill: prompts of about 750 tokens, each with other words (eq. 13)
//   workers,rtt_ms,hedge  number of workers, round trip time, hedging
//   rows              rows of a pass
//   hub_ms            the hub's own time of a pass, as measured: workers' times do not predict it
//   round_ms,round_predicted    the time of a layer's exchange with the workers, measured and predicted
//   pass_ms,pass_predicted      the time of a pass; the prediction is hub_ms and one predicted round a layer
//   rows_s            measured rows a second
//   off_percent       error of pass_predicted; and the least and the largest error of the turns
//   off_together      the same error if all copies of a call stall at once, as on cores that they share
import { join } from "node:path";

import { Hub, NativeWorker, build, chat, run } from "../../tests/browser/support/hub.mjs";
import { farAway } from "../far_away.mjs";

const turns = Number(process.argv[2] ?? 3);
const seconds = process.argv[3] ?? "4";
const only = process.argv[4] ?? "";
const serve = ["--local-fallback", "off", "--timeout-ms", "60000", "--check-answers", "off"];
const conditions = [];
for (const [work, workers, hedge] of [["decode", 1, "off"], ["decode", 2, "off"], ["decode", 4, "off"],
  ["decode", 2, "fixed 2"], ["prefill", 2, "off"]])
  for (const rtt_ms of [0, 20]) conditions.push({ work, workers, hedge, rtt_ms });
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

let words = 0;
const prompt = (work) => (work === "decode" ? `Tell me a story about garden ${words += 1}.`
  : Array.from({ length: 110 }, () => `garden ${(words += 1) % 997}`).join(", "));

async function ask(hub, work, max_tokens) {
  const { error } = await chat(hub, {
    model: "moex-demo", temperature: 1, seed: words, max_tokens, messages: [{ role: "user", content: prompt(work) }],
  });
  if (error) throw new Error(JSON.stringify(error));
}

// Keeps the hub busy until the promise `done` settles. Texts are long enough to be mostly decoding, and short enough to
// end soon after `done`.
async function workUntil(hub, { work, rtt_ms }, done) {
  let more = true;
  const ended = done.finally(() => { more = false; });
  while (more) await ask(hub, work, work === "prefill" ? 1 : rtt_ms > 0 ? 48 : 400);
  return ended;
}

async function measure(condition) {
  const { work, workers, rtt_ms, hedge } = condition;
  const hub = await Hub.start([...serve, "--hedge", hedge, "--replicas", hedge === "off" ? "1" : "2"]);
  const line = rtt_ms > 0 ? await farAway(hub.port, rtt_ms) : null;
  const there = line ? { join: hub.join, url: `http://127.0.0.1:${line.address().port}` } : hub;
  const all = [];
  try {
    for (let i = 0; i < workers; i += 1) all.push(await NativeWorker.start(there, ["--backend", "cpu"]));
    await hub.until(({ coverage }) => coverage.replicas_min === (hedge === "off" ? 1 : 2), "the workers");
    await ask(hub, work, 8);
    const args = ["model", "--from-metrics", hub.url, "--over", seconds, "--json"];
    const { code, stdout, stderr } = await workUntil(hub, condition, run(join(build, "moex-hub"), args));
    if (code !== 0) throw new Error(stderr);
    return JSON.parse(stdout);
  } finally {
    for (const worker of all) await worker.stop();
    await hub.remove();
    line?.close();
  }
}

console.log("work,workers,rtt_ms,hedge,rows,hub_ms,round_ms,round_predicted,pass_ms,pass_predicted,rows_s,"
  + "off_percent,off_min,off_max,off_together");
for (const condition of conditions.filter(({ hedge }) => hedge.startsWith(only))) {
  const found = [];
  for (let turn = 0; turn < turns; turn += 1) found.push(await measure(condition));
  const of = (row, quantity, value) => found.map((rows) =>
    rows.find((one) => one.row === row && one.quantity === quantity)[value]);
  const off = of("pass", "off %", "predicted");
  const speed = of("pass", "rows/s", "measured");
  const together = condition.hedge === "off" ? off : of("pass, together", "ms", "predicted")
    .map((ms, turn) => 100 * (ms / of("pass", "ms", "measured")[turn] - 1));
  const rows = of("pass", "ms", "measured").map((ms, turn) => ms * speed[turn] / 1e3);
  console.log([condition.work, condition.workers, condition.rtt_ms, condition.hedge, median(rows).toFixed(1),
    ...[of("hub", "ms", "measured"), of("round", "ms", "measured"), of("round", "ms", "predicted"),
      of("pass", "ms", "measured"), of("pass", "ms", "predicted"), speed, off,
    ].map((values) => median(values).toFixed(2)), Math.min(...off).toFixed(1), Math.max(...off).toFixed(1),
    median(together).toFixed(2)].join(","));
}
