#!/usr/bin/env node
// Measures experts on demand: one native worker holds all of the demo's experts on disk, with memory for some of them.
//   usage: MOEX_BUILD=build node bench/on_demand_bench.mjs [tokens] [turns] [round_trip_ms] [hints] [budgets] [ways]
//                                                          [96 3 0 off,4,8,shadow:int3,shadow:int2 3,12 exact]
// round_trip_ms: round trip time added between hub and worker. hints: values of `serve --prefetch`; shadows
// (shadow:int2, ...) are packed here first. budgets: memory limits of the worker in MB. ways: values of the request
// field moex.experts. All configurations decode a greedy answer to the same question, alternately. Prints CSV, a row
// for each configuration:
//   budget_mb,slots   the worker's limit, and the number of experts that fit into its memory
//   host_mb           memory of the worker's machine for experts that were read and verified before (--host-mb)
//   policy,prefetch   the eviction policy, and the number of experts per token and layer that the hub predicts
//   experts           exact, or the lossy mode
//   asked,missing     experts that groups requested, and those without a slot when their group arrived (late: their
//                     copy was in flight)
//   load_ms_token     time per token that groups waited for experts
//   tok_s,of_all      tokens a second of the answer (medians), and as a share of a worker with memory for all experts
//   of_off            tokens a second as a share of the same worker without hints; shares are medians over the turns
//   drawn,right       tokens that a shadow drew ahead of the model, and those that equal the model's
//   layers,too_late   layers that a shadow predicted, and those that the model had already passed
//   copied            positions whose keys and values the shadow copied from the model
// The bench fails when a text in exact mode differs from the text of the worker with memory for all experts.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Hub, NativeWorker, build, chat, run } from "../tests/browser/support/hub.mjs";
import { farAway } from "./far_away.mjs";

const max_tokens = Number(process.argv[2] ?? 96);
const turns = Number(process.argv[3] ?? 3);
const round_trip_ms = Number(process.argv[4] ?? 0);
const request = {
  model: "moex-demo", temperature: 0, max_tokens,
  messages: [{ role: "user", content: "Tell me a story about a garden." }],
};
const hints = (process.argv[5] ?? "off,4,8,shadow:int3,shadow:int2").split(",");
const budgets = (process.argv[6] ?? "3,12").split(",").map(Number);
const lossy = (process.argv[7] ?? "exact").split(",");
const serve = ["--local-fallback", "off", "--replicas", "1", "--timeout-ms", "60000", "--check-answers", "off"];
// The first configuration has memory for all experts; the others are compared with it.
const ways = [{ budget_mb: 64, host_mb: 0, policy: "lru", prefetch: "off", experts: "exact" }];
for (const budget_mb of budgets)
  for (const host_mb of [0, 256])
    for (const prefetch of hints)
      for (const experts of lossy) ways.push({ budget_mb, host_mb, policy: "lru", prefetch, experts });
if (process.argv.length <= 5)
  for (const policy of ["lfu", "cacheless"])
    for (const prefetch of ["off", "4"]) ways.push({ budget_mb: 3, host_mb: 256, policy, prefetch, experts: "exact" });
// Folders of the demo's shadows, keyed by dtype.
const shadows = mkdtempSync(join(tmpdir(), "moex-shadows-"));
for (const dtype of ["int2", "int3"]) {
  if (!hints.includes(`shadow:${dtype}`)) continue;
  const packed = await run(join(build, "moex-hub"), ["pack", "--shadow", dtype, "static/models/demo",
    join(shadows, dtype)]);
  if (packed.code !== 0) throw new Error(packed.stderr);
}
const flagOf = (prefetch) => (/^shadow:int\d$/.test(prefetch) ? prefetch.replace(":", `:${shadows}/`) : prefetch);
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

async function measure({ budget_mb, host_mb, policy, prefetch, experts }) {
  const cache = mkdtempSync(join(tmpdir(), "moex-on-demand-"));
  const hub = await Hub.start([...serve, "--prefetch", flagOf(prefetch)]);
  const line = round_trip_ms > 0 ? await farAway(hub.port, round_trip_ms) : null;
  const there = line ? { join: hub.join, url: `http://127.0.0.1:${line.address().port}` } : hub;
  const worker = await NativeWorker.start(there, ["--backend", "cpu", "--cache", cache, "--keep-mb", "80",
    "--budget-mb", budget_mb, "--host-mb", host_mb, "--evict", policy]);
  try {
    await hub.until(({ coverage }) => coverage.replicas_min === 1, "the worker");
    const begun = performance.now();
    const { text, error } = await chat(hub, { ...request, moex: { experts } });
    if (error) throw new Error(JSON.stringify(error));
    const seconds = (performance.now() - begun) / 1000;
    const { shadow } = await hub.status();
    await worker.stop();
    const said = /worker: (asked=.*)/.exec(worker.child.printed)?.[1] ?? "asked=0 resident=0 late=0 load_ms=0";
    const figures = Object.fromEntries(said.split(" ").map((one) => one.split("=")).map(([k, v]) => [k, Number(v)]));
    const [, slots] = [...worker.child.printed.matchAll(/^serving units=.* resident=(\d+)$/mg)].at(-1);
    return { text, slots, tok_s: max_tokens / seconds, shadow, ...figures };
  } finally {
    await hub.remove();
    line?.close();
    rmSync(cache, { recursive: true, force: true });
  }
}

const results = ways.map(() => []);
for (let turn = 0; turn < turns; turn += 1)
  for (const [i, way] of ways.entries()) results[i].push(await measure(way));

const [all] = results;
console.log("budget_mb,slots,host_mb,policy,prefetch,experts,asked,missing,late,load_ms_token,tok_s,of_all,of_off,"
  + "drawn,right,layers,too_late,copied");
for (const [i, { budget_mb, host_mb, policy, prefetch, experts }] of ways.entries()) {
  if (experts === "exact" && results[i].some(({ text }) => text !== all[0].text))
    throw new Error(`${JSON.stringify(ways[i])}: another text`);
  const [{ slots, asked, late }] = results[i];
  const of = (value) => median(results[i].map(value));
  const shareOf = (others) => median(results[i].map(({ tok_s }, turn) => tok_s / others[turn].tok_s)).toFixed(3);
  const off = results[ways.findIndex((other) => other.prefetch === "off" && other.budget_mb === budget_mb
    && other.host_mb === host_mb && other.policy === policy && other.experts === experts)];
  console.log([budget_mb, slots, host_mb, policy, prefetch, experts, asked, of((one) => one.asked - one.resident), late,
    (of((one) => one.load_ms) / max_tokens).toFixed(2), of((one) => one.tok_s).toFixed(1), shareOf(all),
    shareOf(off), ...["tokens_drawn", "tokens_right", "layers", "layers_late", "positions_copied"].map((name) =>
      of(({ shadow }) => shadow?.[name] ?? 0))].join(","));
}
rmSync(shadows, { recursive: true });
