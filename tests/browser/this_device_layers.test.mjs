// "This device" begins to read a question before the last byte of its model has come, in a real Chromium on the
// software adapter: layers arrive in order, and those that are here compute while the line holds the others back. The
// words are those of a model that was loaded at once.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask } from "./support/chat_page.mjs";
import { answerTo, deviceSettled, lastAnswer, openChat, set, takeWay } from "./support/device_page.mjs";
import { Hub, chat } from "./support/hub.mjs";
import { packSmall } from "./support/small_model.mjs";
import { launch } from "./support/tab.mjs";

const num_layers = 4, num_held = 1, num_tokens = 8;      // a quarter of the layers is held back
const short = "Tell me a story about a garden.";
const long = "The old lighthouse keeper walked along the garden wall and looked at the sea. ".repeat(8);

let folder, browser, hub, blobs;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "moex-small-"));
  const [model, launched] = await Promise.all([packSmall(folder, { layers: num_layers }), launch()]);
  browser = launched;
  blobs = JSON.parse(readFileSync(join(model, "manifest.json"), "utf8")).experts;
  hub = await Hub.start(["--backend", "local", "--model", model, "--arithmetic", "exact"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
  rmSync(folder, { recursive: true, force: true });
});

// Opens a page whose line holds back the experts of the last layers until letThrough() is called, and starts to load.
async function openSlow(t) {
  const context = await browser.newContext();
  t.after(() => context.close());
  await takeWay(context, "tab");      // a reload has to load the model again
  const held = new Set(blobs.slice(-num_held).flat());
  const come = new Set();
  let letThrough = () => {};
  const released = new Promise((resolve) => { letThrough = resolve; });
  await context.route("**/api/package/*", async (route) => {
    const hash = new URL(route.request().url()).pathname.split("/").at(-1);
    if (held.has(hash)) await released;
    come.add(hash);
    await route.continue().catch(() => {});      // the page may have gone
  });
  const page = await openChat(context, hub);
  await set(page, { temperature: "0", max_tokens: String(num_tokens) });
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await page.locator("#device-load").click();
  await page.locator("#close-settings").click();
  const numHere = () => [...held].filter((hash) => come.has(hash)).length;
  return { page, letThrough, numHere };
}

// Waits until the layers that the line lets through have read the question.
const readEarly = (page) => page.locator("#hint", {
  hasText: `${num_layers - num_held} of its ${num_layers} layers have read your question`,
}).waitFor();

const wordsOf = async (question) => (await chat(hub, {
  model: "small", messages: [{ role: "user", content: question }], temperature: 0, max_tokens: num_tokens,
})).text;

test("layers read a question while a quarter of the model is on its way", async (t) => {
  const { page, letThrough, numHere } = await openSlow(t);
  await ask(page, long);
  await readEarly(page);
  assert.equal(numHere(), 0, "no expert of the last quarter is here");
  assert.match(await page.locator("#pool-text").textContent(), /this device, loading/);
  assert.equal(await page.locator(".message.assistant .body").textContent(), "");
  letThrough();
  const early = await lastAnswer(page);
  assert.equal(early.facts.place, "device");
  assert.equal(early.facts.cached_tokens, 0);
  assert.equal(early.content, await wordsOf(long));

  // A model that is loaded at once gives the same words.
  await page.reload();
  assert.match(await deviceSettled(page), /^Ready/);
  assert.equal((await answerTo(page, long)).content, early.content);
  assert.deepEqual(page.errors, []);
});

test("a question that is stopped while layers are on their way leaves nothing behind", async (t) => {
  const { page, letThrough } = await openSlow(t);
  await ask(page, long);
  await readEarly(page);
  await page.locator("#stop").click();
  assert.equal((await lastAnswer(page)).end.reason, "stopped");
  await page.locator("#new-chat").evaluate((node) => node.click());
  await ask(page, short);
  await readEarly(page);
  letThrough();
  assert.equal((await lastAnswer(page)).content, await wordsOf(short));
  assert.deepEqual(page.errors, []);
});
