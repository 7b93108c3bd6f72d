// A browser without a GPU: the tab computes on the processor, says so, and serves the demo.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Hub, chat, generateText } from "./support/hub.mjs";
import { launch, openTab, serving, tabStatus } from "./support/tab.mjs";

const prompt = process.env.MOEX_STORY_PROMPT ?? "Tell me a story about a garden.";
const max_tokens = 48;
const request = { model: "moex-demo", messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens };
const alone = ["--local-fallback", "off", "--timeout-ms", "60000", "--round-deadline-s", "300"];
let browser;

before(async () => { browser = await launch([], { webgpu: false }); });
after(async () => { await browser?.close(); });

test("a tab without a GPU serves the demo and shows its processor", async (t) => {
  const hub = await Hub.start(alone);
  t.after(() => hub.remove());
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await openTab(context, hub.join);
  const { adapter } = await tabStatus(page);
  assert.deepEqual([adapter.backend, adapter.architecture], ["cpu", "SIMD128"]);
  assert.match(await page.locator("#gpu").textContent(),
    /^none: computing on the processor \(SIMD128\)\. WebGPU found no usable GPU\./);
  await hub.until((status) => status.health === "ok", "the tab");
  const answer = await chat(hub, request);
  assert.equal(answer.error, null);
  assert.ok(answer.usage.completion_tokens > 1 && answer.text.length > 0);

  const { calls, workers } = await hub.status();
  assert.equal(calls.local, 0);
  assert.ok(calls.remote > 0 && calls.remote === calls.calls);
  assert.deepEqual(workers.map((one) => [one.backend, one.arithmetic, one.software]), [["cpu", "int8", false]]);
});

test("a deterministic hub receives exact answers and keeps its text", async (t) => {
  const expected = await generateText(prompt, max_tokens);
  assert.ok(expected.margin >= 0.05, `the smallest margin is ${expected.margin}, wanted at least 0.05`);
  const hub = await Hub.start(["--deterministic", ...alone]);
  t.after(() => hub.remove());
  const context = await browser.newContext();
  t.after(() => context.close());
  await serving(await openTab(context, hub.join));
  await hub.until((status) => status.health === "ok", "the tab");
  const answer = await chat(hub, request);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);
  assert.deepEqual((await hub.status()).workers.map((one) => [one.backend, one.arithmetic]), [["cpu", "exact"]]);
});
