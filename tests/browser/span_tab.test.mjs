// A tab that computes layers whole (SwiftShader without a GPU), far from its hub.
import assert from "node:assert/strict";
import { test } from "node:test";

import { farAway } from "../../bench/far_away.mjs";
import { Hub, NativeWorker, chat } from "./support/hub.mjs";
import { launch, openTab } from "./support/tab.mjs";

const request = {
  model: "moex-demo", messages: [{ role: "user", content: "Tell me a story about a garden." }], temperature: 0,
  max_tokens: 8,
};
// Exact arithmetic gives equal texts wherever layers are computed (spans.test.mjs says why).
const exact = ["--arithmetic", "exact", "--speculative", "off", "--timeout-ms", "60000", "--round-deadline-s", "300"];

async function asked(hub, what, predicate) {
  for (let tries = 0; tries < 200; ++tries) {
    const status = await hub.status();
    if (predicate(status)) return status;
    assert.equal((await chat(hub, { ...request, max_tokens: 3 })).error, null);
  }
  const { spans, workers } = await hub.status();
  throw new Error(`${what} did not happen: ${JSON.stringify({ spans, workers })}`);
}

test("a tab computes layers whole, and a closed or crashed tab changes no text", { timeout: 600_000 }, async (t) => {
  const hub = await Hub.start([...exact, "--local-fallback", "off", "--replicas", "2", "--spans", "auto"]);
  t.after(() => hub.remove());
  // A software GPU computes five layers in a quarter of a second. One trip of this length is still faster than five.
  const line = await farAway(hub.port, 150);
  t.after(() => line.close());
  const join = hub.join.replace(`:${hub.port}/`, `:${line.address().port}/`);
  const experts = await NativeWorker.start({ url: new URL("/", join).href, join },
    ["--backend", "cpu", "--arithmetic", "exact"]);
  t.after(() => experts.stop());
  const browser = await launch();
  t.after(() => browser.close());

  const here = await chat(hub, { ...request, moex: { spans: "off" } });
  assert.equal(here.error, null);
  for (const ends of ["closed", "crashed"]) {
    const context = await browser.newContext();
    const page = await openTab(context, join);
    const { spans } = await asked(hub, "a trip through the tab", ({ spans: { held } }) =>
      held.some(({ used }) => used));
    assert.deepEqual(spans.held.map(({ first_layer, end_layer }) => [first_layer, end_layer]), [[2, 7]]);
    await page.locator("#share", { hasText: "It computes layers 2 to 6 whole." }).waitFor();

    // The tab ends in the midst of an answer that it computes. On a busy machine a step may be late, after which the
    // hub computes an answer or more without the tab.
    let ended = null;
    for (let tries = 0; tries < 50 && !ended; ++tries) {
      const { spans: before } = await hub.status();
      const answer = await chat(hub, request, async (count) => {
        if (count < 4 || ended || (await hub.status()).spans.trips === before.trips || ended) return;
        ended = ends === "closed" ? context.close() : page.goto("chrome://crash").catch(() => {});
      });
      assert.equal(answer.error, null, ends);
      assert.equal(answer.text, here.text, ends);
    }
    assert.ok(ended, "no answer used the tab");
    await ended;
    const { spans: after } = await hub.status();
    assert.ok(after.trips > spans.trips && after.lies === 0, JSON.stringify(after));
    await asked(hub, `the end of the ${ends} tab`, ({ spans: { held } }) => held.length === 0);
  }
});
