// Experts on demand in a real Chromium: a tab with memory for an eighth of the experts keeps all of them in the
// browser's cache and gives the same text; what the hub foresees is there before it is asked for.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Hub, chat, generateText } from "./support/hub.mjs";
import { launch, openTab, tabStatus } from "./support/tab.mjs";

const prompt = "Tell me a story about a garden.";
const max_tokens = 48;
const request = { model: "moex-demo", messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens };
const patient = ["--local-fallback", "off", "--deterministic", "--replicas", "1", "--timeout-ms", "60000",
  "--round-deadline-s", "300"];
let browser;
let expected;
before(async () => {
  browser = await launch();
  expected = await generateText(prompt, max_tokens);
});
after(() => browser?.close());

// The worker of a page gets limits that the sliders do not offer: of 3 MiB three quarters are for experts.
const small = (how) => {
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function(message) {
    post.call(this, message.type === "start" ? { ...message, budget_bytes: 3 << 20, ...how } : message);
  };
};
async function openSmallTab(t, hub, how = {}) {
  const context = await browser.newContext();
  t.after(() => context.close());
  await context.addInitScript(small, how);
  await context.addInitScript(() => localStorage.setItem("moex-keep", "1"));      // a gigabyte
  return openTab(context, hub.join);
}
async function sameText(hub) {
  const answer = await chat(hub, request);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);
}

// The status page says what the hub was told of the tab's slots.
async function sayOnDemand(hub, slots, foreseen) {
  await hub.until(({ calls }) => calls.on_demand.asked >= slots.asked, "the last of its figures");
  const page = await browser.newPage();
  await page.goto(`${hub.url}/status.html`);
  const hinted = " Hints had brought [\\d,]+ of them, .+ ahead; .+ were brought in vain\\.";
  const words = new RegExp("^Of experts on demand 1\\d lay on contributors' GPUs when they were ready, .+ on disk\\. "
    + `\\d+ % of those that were asked were there, [\\d.,]+ a token were not\\.${foreseen ? hinted : ""} `
    + "Calls that waited for experts did so for .+; .+ would pass unnoticed, were all foreseen\\.$");
  await page.locator("#on-demand", { hasText: words }).waitFor({ timeout: 0 });
  await page.close();
}

test("a tab with memory for an eighth of the experts gives the same text, helped by foresight", async (t) => {
  const counts = {};
  for (const prefetch of ["off", "on"]) {
    const hub = await Hub.start([...patient, "--prefetch", prefetch]);
    t.after(() => hub.remove());
    const page = await openSmallTab(t, hub);
    await hub.until(({ coverage }) => coverage.replicas_min === 1, "the tab");
    await sameText(hub);

    await page.locator("#keep-words", { hasText: /^Keeps 128 experts on disk, 1\d on the GPU, 20 MB in / })
      .waitFor({ timeout: 0 });
    const { slots, units_assigned, units_resident, device, budget_bytes } = await tabStatus(page);
    assert.ok(units_resident <= units_assigned / 8);
    assert.ok(device.buffer_bytes <= budget_bytes);
    counts[prefetch] = { ...slots, missing: slots.asked - slots.resident };
    await sayOnDemand(hub, slots, prefetch === "on");
    // The console repeats that /health answered 503 while nobody served.
    assert.deepEqual(page.errors.filter((one) => !one.includes("status of 503")), []);
  }
  console.log(counts);
  assert.equal(counts.off.prefetched, 0);
  assert.ok(counts.on.prefetched > 0);
  assert.ok(counts.on.missing < counts.off.missing);
});

test("the store deleted under a tab that serves is filled again, and the text is the same", async (t) => {
  const hub = await Hub.start(patient);
  t.after(() => hub.remove());
  const page = await openSmallTab(t, hub, { host_bytes: 1 << 20 });
  await hub.until(({ coverage }) => coverage.replicas_min === 1, "the tab");
  const before = (await tabStatus(page)).bytes_downloaded;
  await page.evaluate(async () => {
    const cache = await caches.open("moex-weights-v1");
    for (const [i, key] of (await cache.keys()).entries())
      if (i % 2 === 0) await cache.delete(key);
      else await cache.put(key, new Response(new Uint8Array(1000)));      // damaged
  });
  await sameText(hub);
  const status = await tabStatus(page);
  assert.ok(status.bytes_downloaded > before);
  assert.ok(status.blobs_refused > 0);
});

test("a store that is full lets go of what nobody asks for, and the text is the same", async (t) => {
  const hub = await Hub.start(patient);
  t.after(() => hub.remove());
  const context = await browser.newContext();
  t.after(() => context.close());

  // 12 MB, of which another model's blobs hold 4; this one's are 20.
  const setup = await context.newPage();
  await setup.goto(`${hub.url}/status.html`);
  const session = await context.newCDPSession(setup);
  await session.send("Storage.overrideQuotaForOrigin", { origin: hub.url, quotaSize: 12 << 20 });
  await setup.evaluate(async () => {
    const cache = await caches.open("moex-weights-v1");
    for (let i = 0; i < 4; i += 1)
      await cache.put(`/weights/${String(i).repeat(64)}`, new Response(new Uint8Array(1 << 20)));
  });

  await context.addInitScript(small, {});
  await context.addInitScript(() => localStorage.setItem("moex-keep", "1"));
  const page = await openTab(context, hub.join);
  await hub.until(({ coverage }) => coverage.replicas_min === 1, "the tab");
  await sameText(hub);

  // Another model's went first; what is written down trails behind who computes.
  const kept = async (wanted) => {
    const keys = await (await caches.open("moex-weights-v1")).keys();
    const isOther = ({ url }) => /\/(\d)\1{63}$/.test(url);
    return wanted === "own" ? keys.filter((key) => !isOther(key)).length : keys.filter(isOther).length === 0;
  };
  await setup.waitForFunction(kept, "others", { timeout: 0, polling: 100 });
  const own = await setup.evaluate(kept, "own");
  assert.ok(own > 0 && own < 128, `${own} of 128 blobs are kept`);
  assert.equal((await tabStatus(page)).blobs_refused, 0);
});
