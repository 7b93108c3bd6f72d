// Stories of spans: native workers that compute several layers whole, on Vulkan (lavapipe without a GPU).
import assert from "node:assert/strict";
import { resolve } from "node:path";
import { test } from "node:test";

import { farAway } from "../../bench/far_away.mjs";
import { Hub, NativeWorker, build, chat } from "./support/hub.mjs";

const request = {
  model: "moex-demo", messages: [{ role: "user", content: "Tell me a story about a garden." }], temperature: 0,
  max_tokens: 24,
};
// Hub and workers compute in exact arithmetic: their logits differ by less than 5e-3 (span_decoder_test), and the
// smallest margin of this greedy text is 0.05 (native_workers.test.mjs). So the texts are equal.
const exact = ["--arithmetic", "exact", "--speculative", "off", "--timeout-ms", "60000", "--round-deadline-s", "300"];

// The hub's steps run on the first Vulkan device.
const onGpu = ["--gpu", "0"];

// Resolves to {url, join} of the hub behind a line. One trip for several layers is then faster than one for each, even
// if this machine is busy: a software GPU takes 10 to 20 ms a layer.
async function farFrom(t, hub, rtt_ms = 20) {
  const line = await farAway(hub.port, rtt_ms);
  t.after(() => line.close());
  return { url: `http://127.0.0.1:${line.address().port}`, join: hub.join };
}

// A worker on a GPU, whose device is lost at SIGUSR2.
async function start(t, hub, args = []) {
  const worker = await NativeWorker.start(hub, args,
    { LD_PRELOAD: resolve(build, "tests/support/lose_device.so") });
  t.after(() => {
    worker.child.kill("SIGCONT");
    return worker.stop("SIGKILL");
  });
  return worker;
}

// Resolves to the status once `predicate(status)` is true. Asks meanwhile: a hub that answers checks its spans.
async function asked(hub, what, predicate) {
  for (let tries = 0; tries < 200; ++tries) {
    const status = await hub.status();
    if (predicate(status)) return status;
    assert.equal((await chat(hub, { ...request, max_tokens: 4 })).error, null);
  }
  const { spans, workers } = await hub.status();
  throw new Error(`${what} did not happen: ${JSON.stringify({ spans, workers })}`);
}

// Asks until an answer has taken a trip: the hub does not ask a holder for a while after it was late. Each answer is
// `text`. Resolves to the state of the spans.
async function travels(hub, text) {
  const { spans: { trips } } = await hub.status();
  for (let tries = 0; tries < 50; ++tries) {
    assert.equal((await chat(hub, request)).text, text);
    const { spans } = await hub.status();
    if (spans.trips > trips) return spans;
  }
  throw new Error("no answer took a trip");
}

const isLate = ({ first_layer }) => first_layer > 2;
const first = ({ spans }) => spans.held.filter((one) => !isLate(one));
const second = ({ spans }) => spans.held.filter(isLate);
const isUsed = ({ used }) => used;

// Returns a function that asks, and disturbs the holder of some layers in the midst of the answer, whose text is `text`
// all the same. It resolves to the disturbed worker.
function disturbing(hub, workers, text) {
  return async (what, layers, disturb) => {
    await asked(hub, `a trip before "${what}"`, (status) => layers(status).some(isUsed));
    const { spans: before } = await hub.status();
    let worker = null, longest = 0, last = 0;
    const answer = await chat(hub, request, async (count) => {
      if (worker) longest = Math.max(longest, performance.now() - last);
      last = performance.now();
      if (count < 6 || worker) return;
      const status = await hub.status();
      const holder = layers(status).find(isUsed) ?? layers(status)[0];
      worker = workers[status.workers.find(({ id }) => id === holder.worker).nickname];
      disturb(worker);
      last = performance.now();
    });
    console.log(`${what}: longest pause ${(longest / 1000).toFixed(3)} s`);
    assert.equal(answer.error, null, what);
    assert.equal(answer.text, text, what);
    const { spans: now } = await hub.status();
    assert.equal(now.lies, 0, what);
    console.log(`${what}: ${now.late - before.late} late steps, ${now.failed - before.failed} lost, `
      + `${now.kv_rows - before.kv_rows} rows of keys and values sent`);
    return worker;
  };
}

// Starts a swarm of four workers: `experts` holds experts only, `one` and `other` the same layers whole, `last` those
// behind them, at least two: a span of one layer takes as many trips as the round of its experts, and is used by
// chance. The hub computes no experts.
async function swarm(t) {
  const hub = await Hub.start([...exact, "--local-fallback", "off", "--replicas", "2", "--spans", "auto"]);
  t.after(() => hub.remove());
  const far = await farFrom(t, hub, 60);
  const workers = {};
  const join = async (name, args) => { workers[name] = await start(t, far, ["--nickname", name, ...args]); };
  await join("experts", ["--backend", "cpu", "--arithmetic", "exact"]);
  await join("one", ["--budget-mb", "32"]);
  const { spans } = await asked(hub, "a first span", (status) => first(status).length === 1);
  const num_layers = spans.held[0].end_layer - 2;
  assert.ok(num_layers > 0 && num_layers < 4, JSON.stringify(spans));
  await join("last", ["--budget-mb", "40"]);
  await asked(hub, "a second span", (status) => second(status).length === 1);
  await join("other", ["--budget-mb", "32"]);
  await asked(hub, "a second holder", (status) => first(status).length === 2);
  return { hub, workers };
}

test("a holder that stops, breaks, leaves or is killed changes no text", { timeout: 300_000 }, async (t) => {
  const { hub, workers } = await swarm(t);
  // An answer that may not leave the hub in a span.
  const { spans: { trips } } = await hub.status();
  const here = await chat(hub, { ...request, moex: { spans: "off" } });
  assert.equal(here.error, null);
  assert.equal((await hub.status()).spans.trips, trips);

  const { spans } = await asked(hub, "a trip through both spans", (status) =>
    first(status).some(isUsed) && second(status).some(isUsed));
  for (const { first_layer, end_layer } of spans.held)
    assert.ok(first_layer >= 2 && end_layer <= 7, "the hub computes the first two layers and the last one");
  assert.equal((await chat(hub, request)).text, here.text);

  const disturbed = disturbing(hub, workers, here.text);
  const stopped = await disturbed("SIGSTOP", first, (worker) => worker.child.kill("SIGSTOP"));
  stopped.child.kill("SIGCONT");
  await asked(hub, "two holders", (status) => first(status).length === 2);
  const broken = await disturbed("lost device", first, (worker) => worker.child.kill("SIGUSR2"));
  // The device is lost in the holder's next step, which the next answer may bring.
  await asked(hub, "the loss of a device", () => /device lost/.test(broken.child.printed));
  await asked(hub, "the holder on its next device", (status) => first(status).length === 2);
  const left = await disturbed("SIGTERM", second, (worker) => worker.child.kill("SIGTERM"));
  assert.deepEqual(await left.child.ended, { code: 0, signal: null });
  // Of the two holders of the first layers, one takes the layers that have no holder now.
  await asked(hub, "the move of a standby", (status) => first(status).length === 1 && second(status).some(isUsed));
  await disturbed("SIGKILL", first, (worker) => worker.child.kill("SIGKILL"));
  const { spans: last } = await asked(hub, "a trip through the last holder", (status) => second(status).some(isUsed));
  assert.equal(last.held.length, 1);
});

// The first worker of a swarm holds every expert, and a small span. Its span grows while answers use it.
test("a span grows once another worker has taken over experts of its holder", { timeout: 300_000 }, async (t) => {
  const hub = await Hub.start([...exact, "--local-fallback", "off", "--replicas", "1", "--spans", "auto"]);
  t.after(() => hub.remove());
  const far = await farFrom(t, hub, 60);
  await start(t, far, ["--nickname", "one", "--budget-mb", "32"]);
  await hub.until(({ coverage }) => coverage.covered === coverage.units, "the experts");
  const length = ({ spans: { held } }) => (held.length === 0 ? 0 : held[0].end_layer - held[0].first_layer);
  const before = length(await asked(hub, "a span", (status) => length(status) > 0));
  assert.ok(before < 4, `${before} layers`);
  const { text } = await chat(hub, request);

  await start(t, far, ["--nickname", "experts", "--backend", "cpu", "--arithmetic", "exact"]);
  await asked(hub, "a larger span", (status) => length(status) > before && status.spans.held[0].proven);
  const { held, failed, lies } = await travels(hub, text);
  assert.equal(held.length, 1);
  assert.deepEqual({ failed, lies }, { failed: 0, lies: 0 });
});

// A holder keeps what it has of an ended text for one that continues it.
test("a later turn brings a holder only what it lacks", { timeout: 300_000 }, async (t) => {
  const hub = await Hub.start([...exact, "--local-fallback", "off", "--spans", "auto"]);
  t.after(() => hub.remove());
  const far = await farFrom(t, hub, 60);
  await start(t, far, ["--nickname", "experts", "--backend", "cpu", "--arithmetic", "exact"]);
  await start(t, far, ["--nickname", "one", "--budget-mb", "64"]);
  await asked(hub, "a trip", ({ spans }) => spans.held.some(isUsed));
  const plot = "The gardener walks along the wall and looks at roses. ".repeat(60);
  const messages = [{ role: "user", content: `Tell me a story about a garden. ${plot}` }];
  const turn = async () => {
    const { spans: before } = await hub.status();
    const { text, error, usage } = await chat(hub, { ...request, messages });
    assert.equal(error, null);
    const { spans } = await hub.status();
    const [rows, trips] = [spans.kv_rows - before.kv_rows, spans.trips - before.trips];
    return { text, tokens: usage.prompt_tokens, rows, trips };
  };
  // A holder that was late just now is not asked for a while.
  let last = await turn();
  for (let tries = 0; tries < 50 && last.trips === 0; ++tries) last = await turn();
  assert.ok(last.tokens > 600 && last.trips > 0, JSON.stringify(last));
  let trips = 0;
  // Four turns, and more of them if the holder was late again.
  for (let i = 0; i < 4 || (trips === 0 && i < 12); ++i) {
    messages.push({ role: "assistant", content: last.text }, { role: "user", content: "And then?" });
    const next = await turn();
    t.diagnostic(`${next.rows} rows were sent of ${next.tokens} tokens, ${next.trips} trips`);
    trips += next.trips;
    // Rows that the hub computed for a check or before the holder was asked, and those of a page that was not full.
    assert.ok(next.rows < next.tokens / 2, `${next.rows} rows of ${next.tokens} tokens were sent`);
    last = next;
  }
  assert.ok(trips > 0, "the answers went through the holder");
});

test("a hub on a GPU sends layers away, and a killed holder fails no answer", { timeout: 300_000 }, async (t) => {
  const hub = await Hub.start([...exact, ...onGpu, "--local-fallback", "off", "--spans", "auto"]);
  t.after(() => hub.remove());
  assert.match(hub.child.printed, /attention, routers and LM head on a GPU/);
  const far = await farFrom(t, hub);
  const workers = {};
  workers.experts = await start(t, far, ["--nickname", "experts", "--backend", "cpu", "--arithmetic", "exact"]);
  const here = await chat(hub, request);
  assert.equal(here.error, null);
  workers.whole = await start(t, far, ["--nickname", "whole", "--budget-mb", "64"]);

  const { spans: { held, trips } } = await asked(hub, "a trip", (status) => first(status).some(isUsed));
  assert.deepEqual(held.map(({ first_layer, end_layer }) => [first_layer, end_layer]), [[2, 7]]);
  assert.equal((await chat(hub, { ...request, moex: { spans: "off" } })).text, here.text);
  assert.equal((await hub.status()).spans.trips, trips, "an answer that may not leave in a span takes no trip");
  const spans = await travels(hub, here.text);
  assert.ok(spans.checks > 0 && spans.lies === 0, JSON.stringify(spans));

  const disturbed = disturbing(hub, workers, here.text);
  const stopped = await disturbed("SIGSTOP", first, (worker) => worker.child.kill("SIGSTOP"));
  stopped.child.kill("SIGCONT");
  await disturbed("SIGKILL", first, (worker) => worker.child.kill("SIGKILL"));
  // The next holder gets keys and values from the pages of the hub's GPU.
  const { spans: before } = await hub.status();
  workers.next = await start(t, far, ["--nickname", "next", "--budget-mb", "64"]);
  await asked(hub, "a trip through the next holder", (status) => first(status).some(isUsed));
  assert.equal((await chat(hub, request)).text, here.text);
  assert.equal((await hub.status()).spans.lies, before.lies);
});

for (const on of [[], onGpu])
  test(["a hub with experts of its own layers takes one trip a token", ...on].join(" "), { timeout: 300_000 },
    async (t) => {
      const alone = await Hub.start([...exact, ...on, "--backend", "local"]);
      t.after(() => alone.remove());
      const { text } = await chat(alone, request);

      const hub = await Hub.start(
        [...exact, ...on, "--own-layers", "3", "--local-fallback", "off", "--spans", "auto"]);
      t.after(() => hub.remove());
      await start(t, await farFrom(t, hub), ["--budget-mb", "64"]);
      const { coverage, spans } = await asked(hub, "a span", (status) => first(status).some(isUsed));
      assert.equal(coverage.units, 5 * 16, "a worker is asked for no expert of the layers 0, 1 and 7");
      assert.deepEqual(spans.held.map(({ first_layer, end_layer }) => [first_layer, end_layer]), [[2, 7]]);

      await travels(hub, text);
    });

test("--deterministic has no spans and says so", { timeout: 300_000 }, async (t) => {
  const hub = await Hub.start(["--deterministic", "--spans", "auto"]);
  t.after(() => hub.remove());
  assert.match(hub.child.printed, /no layers whole.*--deterministic/);
  assert.equal((await hub.status()).spans, undefined);
});

test("a near hub that computes experts itself uses no span", { timeout: 300_000 }, async (t) => {
  const hub = await Hub.start([...exact, "--spans", "auto", "--use-workers", "auto"]);
  t.after(() => hub.remove());
  await start(t, hub);
  const isMeasured = ({ spans }) => spans.held.some(({ here_ms, away_ms }) => here_ms > 0 && away_ms > 0);
  for (let status = await hub.status(); !isMeasured(status); status = await hub.status())
    assert.equal((await chat(hub, { ...request, max_tokens: 16 })).error, null);
  const { spans } = await hub.status();
  const faster = spans.held.filter(({ here_ms, away_ms }) => away_ms <= 0.9 * here_ms);
  assert.ok(faster.length > 0 || spans.trips === 0, JSON.stringify(spans));
});
