// Experts on demand: a worker with memory for an eighth of the model's experts holds all experts and gives the same
// text; experts that the hub predicts are loaded before they are requested.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import {
  appendFileSync, mkdtempSync, readdirSync, rmSync, statSync, truncateSync, writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

import { Front } from "./support/front.mjs";
import { Hub, NativeWorker, build, chat, generateText, run } from "./support/hub.mjs";

const prompt = "Tell me a story about a garden.";
const max_tokens = 48;
const request = { model: "moex-demo", messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens };
const patient = ["--local-fallback", "off", "--deterministic", "--replicas", "1", "--timeout-ms", "60000",
  "--round-deadline-s", "300"];
// Limits of a small worker: three quarters of the 3 MiB are for experts of 156 kB each.
const small = ["--budget-mb", "3", "--keep-mb", "80"];
let expected;
before(async () => { expected = await generateText(prompt, max_tokens); });

// Starts a hub, and one worker that holds all experts. Runs story(hub, cache) and returns its result: the
// worker's final report of its calls. `toWorker` handles the messages in a proxy between the hub and the worker.
async function onDemand(t, options, story) {
  const { is_exact = true, serve = [], worker: more = [], backend = "gpu", toWorker = null } = options;
  const cache = mkdtempSync(join(tmpdir(), "moex-on-demand-"));
  const hub = await Hub.start([...patient.filter((one) => is_exact || one !== "--deterministic"), ...serve]);
  t.after(async () => {
    await hub.remove();
    rmSync(cache, { recursive: true, force: true });
  });
  const front = toWorker ? await Front.start(hub) : null;
  if (front) front.toWorker = toWorker;
  t.after(() => front?.stop());
  const worker = await NativeWorker.start(front ?? hub, ["--backend", backend, "--cache", cache, ...small, ...more]);
  t.after(() => worker.stop());
  const { coverage } = await hub.until(({ health, coverage }) => health === "ok" && coverage.replicas_min === 1, "it");
  await story(hub, cache, front);

  await worker.stop();
  const output = worker.child.printed;
  const said = Object.fromEntries(/worker: (asked=.*)/.exec(output)[1].split(" ").map((one) => one.split("=")));
  for (const name of Object.keys(said)) said[name] = Number(said[name]);
  const [, resident] = /resident=(\d+)$/m.exec(output.slice(output.indexOf("serving units=")));
  assert.ok(Number(resident) <= coverage.units / 8, `${resident} of ${coverage.units} experts lie in memory`);
  return { ...said, missing: said.asked - said.resident };
}

const sameText = async (hub) => {
  const answer = await chat(hub, request);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);
  const { calls } = await hub.status();
  assert.equal(calls.local, 0);
};

test("memory for an eighth of the experts gives the same text with prefetching", async (t) => {
  const counts = {};
  const shadow = join(mkdtempSync(join(tmpdir(), "moex-shadow-")), "int3");
  t.after(() => rmSync(dirname(shadow), { recursive: true, force: true }));
  const packed = await run(`${build}/moex-hub`, ["pack", "--shadow", "int3", "static/models/demo", shadow]);
  assert.equal(packed.code, 0, packed.stderr);
  for (const prefetch of ["off", "on", `shadow:${shadow}`])
    counts[prefetch] = await onDemand(t, { serve: ["--prefetch", prefetch] }, async (hub) => {
      await sameText(hub);
      // The hub receives the worker's figures with the next heartbeat.
      const { calls, workers } = await hub.until(({ calls: { on_demand } }) => on_demand.misses > 0
        && on_demand.foreseen > 0 === (prefetch !== "off"), "its figures");
      assert.ok(workers[0].on_demand.misses >= calls.on_demand.misses);
      assert.ok(calls.on_demand.load_ms > 0);
      assert.ok(workers[0].slots > 0 && workers[0].slots <= 16, `memory for ${workers[0].slots}`);

      const [{ ready_in, slot_bytes, store_bytes, units_ready }] = workers;
      assert.equal(ready_in.store + ready_in.memory + ready_in.slot, units_ready);
      assert.ok(ready_in.slot > 0 && ready_in.slot <= 16, `${ready_in.slot} of them in its slots`);
      assert.ok(slot_bytes > 0 && slot_bytes < 3 << 20);
      assert.equal(store_bytes, 80 << 20);
    });
  console.log(counts);
  assert.equal(counts.off.prefetched, 0);
  for (const foretold of [counts.on, counts[`shadow:${shadow}`]]) {
    assert.ok(foretold.prefetched > 0);
    assert.ok(foretold.missing < counts.off.missing);
  }
});

test("lossy guesses for a layer are hinted one layer earlier and requested", async (t) => {
  const counts = {};
  for (const experts of ["exact", "estimator"])
    counts[experts] = await onDemand(t, { is_exact: false, backend: "cpu" }, async (hub) => {
      const { error, moex } = await chat(hub, { ...request, moex: { experts } });
      assert.equal(error, null);
      assert.equal(moex.experts, experts);
      const models = await (await fetch(`${hub.url}/v1/models`)).json();
      const { experts: offered, experts_perplexity: perplexity } = models.data[0].meta;
      assert.ok(offered.includes(experts), `${offered}`);
      assert.equal(moex.perplexity_excess, perplexity[experts] / perplexity.exact - 1);
    });
  console.log(counts);
  assert.equal(counts.exact.prefetched, 0);  // --prefetch is off
  assert.ok(counts.estimator.prefetched > 0);
  assert.ok(counts.estimator.missing < counts.exact.missing / 2,
    `${counts.estimator.missing} of ${counts.exact.missing}`);

  const hub = await Hub.start(patient);
  t.after(() => hub.remove());
  const { status, error } = await chat(hub, { ...request, moex: { experts: "estimator" } });
  assert.equal(status, 400);
  assert.match(error, /--deterministic/);
});

test("every eviction policy gives the same text, also on the processor", async (t) => {
  for (const evict of ["lfu", "cacheless"])
    console.log(evict, await onDemand(t, { worker: ["--evict", evict], backend: "cpu" }, sameText));
});

test("groups that alternate layers give the same text and receive their hints", async (t) => {
  const hub = await Hub.start([...patient, "--placement", "groups 2", "--prefetch", "on"]);
  t.after(() => hub.remove());
  const folders = Array.from({ length: 4 }, () => mkdtempSync(join(tmpdir(), "moex-on-demand-")));
  t.after(() => folders.forEach((folder) => rmSync(folder, { recursive: true, force: true })));
  const workers = await Promise.all(folders.map((folder) =>
    NativeWorker.start(hub, ["--backend", "cpu", "--cache", folder, "--budget-mb", "3", "--keep-mb", "80"])));
  t.after(() => Promise.all(workers.map((worker) => worker.stop())));
  const { coverage, options } = await hub.until(({ coverage: { away, replicas_min }, workers: seen }) =>
    away === 0 && replicas_min === 1 && seen.length === 4
    && seen.every((one) => one.units_ready === one.units_assigned), "every expert with its group");
  assert.equal(options.placement, "groups 2");

  await sameText(hub);
  const { calls, workers: seen } = await hub.until((status) => status.workers.every(({ on_demand }) =>
    on_demand.foreseen > 0), "hints at each worker");
  assert.equal(calls.load_window.groups, 2);
  for (const name of ["hub_ms", "trip_ms", "most_ms"]) assert.ok(calls.load_window[name] > 0, name);
  // Each worker holds half of the experts in every layer of its group of layers.
  for (const { units_ready } of seen) assert.equal(units_ready, coverage.units / 4);

  // The remaining worker takes over its neighbour's experts.
  await workers[0].stop();
  await hub.until(({ coverage: { away, replicas_min }, workers: left }) => away === 0 && replicas_min === 1
    && left.length === 3 && left.every((one) => one.units_ready === one.units_assigned), "the others have it");
  await sameText(hub);
});

test("damaged or missing cached experts are downloaded again and verified", async (t) => {
  await onDemand(t, { worker: ["--host-mb", "0"] }, async (hub, cache) => {
    const blobs = readdirSync(cache).filter((name) => /^[0-9a-f]{64}$/.test(name));
    blobs.forEach((name, i) => {
      if (i % 3 === 0) rmSync(join(cache, name));
      else if (i % 3 === 1) truncateSync(join(cache, name), 1000);
      else appendFileSync(join(cache, name), "x");
    });
    await sameText(hub);
  });
});

test("a limited cache evicts other models first and gives the same text", async (t) => {
  const others = Array.from({ length: 10 }, (_, i) => String(i).repeat(64));
  const folder = mkdtempSync(join(tmpdir(), "moex-on-demand-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  for (const name of others) writeFileSync(join(folder, name), Buffer.alloc(1 << 20));
  const hub = await Hub.start(patient);
  t.after(() => hub.remove());

  // All 128 experts take 20 MB, more than the limit of 12 MB for the cache.
  const worker = await NativeWorker.start(hub,
    ["--backend", "cpu", "--cache", folder, ...small, "--host-mb", "0", "--cache-mb", "12"]);
  t.after(() => worker.stop());
  await hub.until(({ health, coverage }) => health === "ok" && coverage.replicas_min === 1, "it");
  await sameText(hub);
  assert.match(worker.child.printed, /worker: the limit of 12 MB for \S+ is reached: experts beyond it are fetched/);
  await worker.stop();

  const kept = readdirSync(folder).filter((name) => /^[0-9a-f]{64}$/.test(name));
  assert.ok(others.every((name) => !kept.includes(name)), "the other model's went first");
  const bytes = kept.reduce((sum, name) => sum + statSync(join(folder, name)).size, 0);
  assert.ok(bytes > 11 << 20 && bytes <= 12 << 20, `${bytes} bytes are kept`);
});

const prefetch_type = 23;
const is_prefetch = (message) => message.length >= 20 && message.readUInt16LE(6) === prefetch_type;
const unitsOf = (message) => Array.from({ length: message.readUInt16LE(16) },
  (_, i) => ({ layer: message.readUInt16LE(20 + 8 * i), expert: message.readUInt16LE(22 + 8 * i) }));
function prefetchOf(units) {
  const message = Buffer.alloc(20 + 8 * units.length);
  message.write("MoEx");
  message.writeUInt16LE(1, 4);
  message.writeUInt16LE(prefetch_type, 6);
  message.writeUInt32LE(message.length - 16, 8);
  message.writeUInt16LE(units.length, 16);
  units.forEach(({ layer, expert }, i) => {
    message.writeUInt16LE(layer, 20 + 8 * i);
    message.writeUInt16LE(expert, 22 + 8 * i);
    message.writeUInt8(255, 26 + 8 * i);
  });
  return message;
}
const everything = Array.from({ length: 4096 }, (_, i) => ({ layer: (i >> 4) % 8, expert: i % 16 }));

// Handlers that replace a hub's prediction (PREFETCH) with other messages.
let before_it = prefetchOf([]);
const lies = {
  wrong: (message) => {
    const named = unitsOf(message);
    const others = everything.slice(0, 128).filter(({ layer, expert }) => layer === named[0].layer
      && !named.some((one) => one.expert === expert));
    return [prefetchOf(others)];
  },
  late: (message) => {
    const given = [before_it];
    before_it = message;
    return given;
  },
  malicious: () => [prefetchOf(everything), prefetchOf(everything.slice().reverse()), prefetchOf([])],
};
for (const [kind, lie] of Object.entries(lies))
  test(`${kind} hints change no word`, async (t) => {
    let num_hints = 0;
    const toWorker = (message) => {
      if (!is_prefetch(message)) return undefined;
      num_hints += 1;
      return lie(message);
    };
    console.log(kind, await onDemand(t, { serve: ["--prefetch", "on"], backend: "cpu", toWorker }, sameText));
    assert.ok(num_hints > 0);
  });

test("a broken hint closes its connection and changes no text", async (t) => {
  let breaks = false;
  const toWorker = (message) => {
    if (!breaks || !is_prefetch(message)) return undefined;
    breaks = false;
    return [prefetchOf([{ layer: 0, expert: 999 }])];
  };
  const serve = ["--prefetch", "on", "--holder-wait-s", "60"];
  await onDemand(t, { serve, backend: "cpu", toWorker }, async (hub, cache, front) => {
    breaks = true;
    await sameText(hub);
    assert.equal(breaks, false);
    assert.equal(front.hellos().length, 2, "it came back");
  });
});

// The hub shows a worker's counters as reported and uses them for no decision: the test's worker claims that each of
// its loads takes a minute.
test("false worker counters change no text and no other figures", async (t) => {
  const slots_type = 32;
  const cache = mkdtempSync(join(tmpdir(), "moex-on-demand-"));
  const hub = await Hub.start([...patient.map((one, i) => (patient[i - 1] === "--replicas" ? "2" : one)),
    "--prefetch", "on"]);
  t.after(async () => {
    await hub.remove();
    rmSync(cache, { recursive: true, force: true });
  });
  const front = await Front.start(hub);
  t.after(() => front.stop());
  let num_lies = 0;
  front.toHub = (message) => {
    if (message.length < 96 || message.readUInt16LE(6) !== slots_type) return undefined;
    num_lies += 1;
    const lie = Buffer.from(message);
    const counts = { asked: 24, hits: 32, late: 40, foreseen: 48, lead_us: 56, loads: 64, load_us: 72, brought: 80 };
    const say = (name, value) => lie.writeBigUInt64LE(BigInt(value), counts[name]);
    say("asked", 2 ** 40 + 2 * num_lies);
    say("hits", num_lies);
    say("late", 0);
    say("foreseen", 0);
    say("lead_us", 0);
    say("loads", 1000 * num_lies);
    say("load_us", 60e9 * num_lies);
    say("brought", 2 ** 40 + num_lies);
    return lie;
  };
  const workers = [];
  for (const [name, to] of [["liar", front], ["honest", hub]]) {
    const own = join(cache, name);
    workers.push(await NativeWorker.start(to, ["--backend", "cpu", "--cache", own, ...small]));
  }
  t.after(async () => { for (const worker of workers) await worker.stop(); });
  await hub.until(({ health, coverage }) => health === "ok" && coverage.replicas_min === 2, "both");
  await sameText(hub);
  await hub.until(({ workers: seen }) => seen.filter(({ on_demand }) => on_demand.asked > 0).length === 2, "both tell");
  await sameText(hub);

  const { workers: seen, calls, coverage } = await hub.status();
  const [liar, honest] = seen.sort((a, b) => b.on_demand.asked - a.on_demand.asked);
  assert.ok(num_lies > 0);
  assert.equal(liar.on_demand.load_ms, 60000);
  assert.ok(honest.on_demand.load_ms < 5000, `${honest.on_demand.load_ms}`);
  assert.ok(honest.on_demand.asked < 2 ** 32);
  for (const one of seen) {
    assert.equal(one.bad_answers, 0);
    assert.equal(one.units_ready, coverage.units);
  }
  assert.deepEqual([calls.rounds_failed, calls.bad_frames, calls.lies], [0, 0, 0]);
});
