// Stories of spans: native workers that compute several layers whole, on Vulkan (lavapipe without a GPU).
import assert from "node:assert/strict";
import { test } from "node:test";

import { Hub, NativeWorker, chat } from "./support/hub.mjs";

const request = {
  model: "moex-demo", messages: [{ role: "user", content: "Tell me a story about a garden." }], temperature: 0,
  max_tokens: 96,
};
const patient = ["--timeout-ms", "60000", "--round-deadline-s", "300"];

// A slow hub: it computes no experts, and every round trip takes 20 ms.
async function farHub(t, args = []) {
  const hub = await Hub.start([...patient, "--local-fallback", "off", ...args]);
  t.after(() => hub.remove());
  return hub;
}

async function farWorker(t, hub, args = []) {
  const worker = await NativeWorker.start(hub, args);
  t.after(() => worker.stop("SIGKILL"));
  return worker;
}

// Asks until a span is used.
async function untilUsed(hub) {
  for (let status = await hub.status(); !(status.spans.trips > 0); status = await hub.status()) {
    const answer = await chat(hub, { ...request, max_tokens: 32 });
    assert.equal(answer.error, null);
  }
}

// It waits until a span is faster than the hub alone, which two busy cores with software GPUs do not reach.
const by_hand = { skip: !process.env.MOEX_SPAN_STORY, timeout: 600_000 };
test("spans are checked, then used, and a killed holder changes no answer", by_hand, async (t) => {
  const hub = await farHub(t, ["--spans", "auto"]);
  const workers = [await farWorker(t, hub), await farWorker(t, hub)];
  await hub.until(({ coverage }) => coverage.covered === coverage.units, "the experts");
  await untilUsed(hub);
  const before = await hub.status();
  assert.ok(before.spans.checks >= 8, JSON.stringify(before.spans));
  assert.equal(before.spans.lies, 0);
  const used = before.spans.held.find((one) => one.used) ?? before.spans.held[0];
  assert.ok(used.first_layer >= 2 && used.end_layer <= 7, "the hub computes the first two layers and the last one");

  // The hub's answer to a request that may not leave it.
  const trips = (await hub.status()).spans.trips;
  const here = await chat(hub, { ...request, moex: { spans: "off" } });
  assert.equal(here.error, null);
  assert.equal((await hub.status()).spans.trips, trips);

  // Kill the holder in the midst of an answer.
  const index = before.workers.findIndex(({ id }) => id === used.worker);
  const killed = workers[index];
  const answer = await chat(hub, request, (count) => {
    if (count === 20) killed.stop("SIGKILL");
  });
  assert.equal(answer.error, null);
  assert.equal(answer.finish, here.finish);
  assert.equal(answer.usage.completion_tokens, here.usage.completion_tokens);
});

test("--deterministic has no spans and says so", { timeout: 300_000 }, async (t) => {
  const hub = await Hub.start(["--deterministic", "--spans", "auto"]);
  t.after(() => hub.remove());
  assert.match(hub.child.printed, /no layers whole.*--deterministic/);
  assert.equal((await hub.status()).spans, undefined);
});

test("a near hub that computes experts itself uses no span", { timeout: 300_000 }, async (t) => {
  const hub = await Hub.start([...patient, "--spans", "auto", "--use-workers", "auto"]);
  t.after(() => hub.remove());
  await farWorker(t, hub);
  const isMeasured = ({ spans }) => spans.held.some(({ here_ms, away_ms }) => here_ms > 0 && away_ms > 0);
  for (let status = await hub.status(); !isMeasured(status); status = await hub.status())
    assert.equal((await chat(hub, { ...request, max_tokens: 16 })).error, null);
  const { spans } = await hub.status();
  const faster = spans.held.filter(({ here_ms, away_ms }) => away_ms <= 0.9 * here_ms);
  assert.ok(faster.length > 0 || spans.trips === 0, JSON.stringify(spans));
});
