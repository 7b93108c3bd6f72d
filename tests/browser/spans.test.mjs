// Stories of spans: native workers that compute several layers whole, on Vulkan (lavapipe without a GPU).
import assert from "node:assert/strict";
import { test } from "node:test";

import { farAway } from "../../bench/far_away.mjs";
import { Hub, NativeWorker, chat } from "./support/hub.mjs";

const request = {
  model: "moex-demo", messages: [{ role: "user", content: "Tell me a story about a garden." }], temperature: 0,
  max_tokens: 24,
};
// Hub and workers compute in exact arithmetic: their logits differ by less than 5e-3 (span_decoder_test), and the
// smallest margin of this greedy text is 0.05 (native_workers.test.mjs). So the texts are equal.
const exact = ["--arithmetic", "exact", "--speculative", "off", "--timeout-ms", "60000", "--round-deadline-s", "300"];

// Resolves to {url, join} of the hub behind a line with a round trip time of 20 ms. One trip for five layers is then
// faster than five, however busy this machine is.
async function farFrom(t, hub) {
  const line = await farAway(hub.port, 20);
  t.after(() => line.close());
  return { url: `http://127.0.0.1:${line.address().port}`, join: hub.join };
}

async function start(t, hub, args = []) {
  const worker = await NativeWorker.start(hub, args);
  t.after(() => {
    worker.child.kill("SIGCONT");
    return worker.stop("SIGKILL");
  });
  return worker;
}

// Asks until `count` trips more than now were used.
async function untilUsed(hub, count) {
  const { spans: { trips } } = await hub.status();
  for (let now = trips; now < trips + count; now = (await hub.status()).spans.trips)
    assert.equal((await chat(hub, { ...request, max_tokens: 12 })).error, null);
}

// Run by hand (MOEX_SPAN_STORY=1): its three workers need more than two busy cores give them.
const by_hand = { skip: !process.env.MOEX_SPAN_STORY, timeout: 600_000 };
test("a span is checked, then used; a killed and a stopped holder change no text", by_hand, async (t) => {
  const hub = await Hub.start([...exact, "--local-fallback", "off", "--replicas", "3", "--spans", "auto"]);
  t.after(() => hub.remove());
  const far = await farFrom(t, hub);
  // The third worker holds experts only, so that the hub can go on without both others.
  await start(t, far, ["--backend", "cpu", "--arithmetic", "exact"]);
  const workers = [await start(t, far), await start(t, far)];
  await hub.until(({ coverage }) => coverage.replicas_min >= 3, "the experts");

  // An answer that may not leave the hub in a span.
  const here = await chat(hub, { ...request, moex: { spans: "off" } });
  assert.equal(here.error, null);
  assert.equal((await hub.status()).spans.trips, 0);

  await untilUsed(hub, 1);
  const { spans } = await hub.status();
  assert.ok(spans.checks >= 8, JSON.stringify(spans));
  for (const { first_layer, end_layer } of spans.held)
    assert.ok(first_layer >= 2 && end_layer <= 7, "the hub computes the first two layers and the last one");
  assert.equal((await chat(hub, request)).text, here.text);

  // Two holders, then one: the holder that is used is disturbed in the midst of an answer.
  for (const signal of ["SIGKILL", "SIGSTOP"]) {
    await untilUsed(hub, 1);
    let disturbed = null;
    const answer = await chat(hub, request, async (count) => {
      if (count < 6 || disturbed) return;
      const status = await hub.status();
      const { worker } = status.spans.held.find(({ used }) => used) ?? status.spans.held[0];
      // The workers joined in the order of their ids.
      disturbed = workers[worker - 2];
      disturbed.child.kill(signal);
    });
    assert.ok(disturbed, signal);
    assert.equal(answer.error, null, signal);
    assert.equal(answer.text, here.text, signal);
  }
  assert.equal((await hub.status()).spans.lies, 0);
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
