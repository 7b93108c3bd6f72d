// New holders of spans send wrong rows, keys alone or values alone from their first answer on. Each is a
// native worker on Vulkan (lavapipe without a GPU) behind a proxy that changes its answers. No text changes, since no
// step of a new holder is used before it was checked.
// bench/span_lies_bench.mjs has holders that lie later, and seldom.
import assert from "node:assert/strict";
import { test } from "node:test";

import { farAway } from "../../bench/far_away.mjs";
import { Hub, NativeWorker, chat } from "./support/hub.mjs";
import { SpanLiar, kinds_of_lies } from "./support/span_liar.mjs";

const request = {
  model: "moex-demo", messages: [{ role: "user", content: "Tell me a story about a garden." }], temperature: 0,
  max_tokens: 24,
};
// The options are those of spans.test.mjs: texts are equal in exact arithmetic, and a line of 20 ms makes one trip for
// five layers faster.
const exact = ["--arithmetic", "exact", "--speculative", "off", "--timeout-ms", "60000", "--round-deadline-s", "300"];

test("a new holder that lies changes no text, and is banned", { timeout: 300_000 }, async (t) => {
  const hub = await Hub.start([...exact, "--local-fallback", "off", "--spans", "auto"]);
  t.after(() => hub.remove());
  const line = await farAway(hub.port, 20);
  t.after(() => line.close());
  const { port } = line.address();
  const far = { url: `http://127.0.0.1:${port}`, port, join: hub.join };
  const experts = await NativeWorker.start(far, ["--backend", "cpu", "--arithmetic", "exact"]);
  t.after(() => experts.stop());

  const here = await chat(hub, { ...request, moex: { spans: "off" } });
  assert.equal(here.error, null);
  for (const [index, kind] of kinds_of_lies.entries()) {
    const liar = await SpanLiar.start(far, kind);
    t.after(() => liar.stop());
    let { spans } = await hub.status();
    while (spans.lies === index) {
      const answer = await chat(hub, request);
      assert.equal(answer.error, null, kind);
      assert.equal(answer.text, here.text, kind);
      ({ spans } = await hub.status());
    }
    assert.ok(liar.num_lies >= 2 && liar.num_lies === liar.num_answers, kind);
    assert.deepEqual([spans.trips, spans.lies], [0, index + 1], kind);
    await hub.until(({ workers }) => workers.length === 1, `the end of the worker that lies in its ${kind}`);
  }
  assert.equal((await hub.status()).calls.bans, kinds_of_lies.length);
  assert.equal((await chat(hub, request)).text, here.text);
});
