// "This device" before its model is on the GPU: a question waits, the page says where answers are computed, and a
// second tab waits for the files in a browser with exclusive file handles.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { ask } from "./support/chat_page.mjs";
import {
  chooseDevice, deviceSettled, few_tokens, greedy, lastAnswer, openChat, set, takeWay,
} from "./support/device_page.mjs";
import { Hub } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

let browser;
let hub;
before(async () => {
  browser = await launch();
  hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

test("a question asked while the model loads is answered when it is ready", async (t) => {
  const context = await browser.newContext();
  t.after(() => context.close());
  await takeWay(context, "tab");      // a reload has to load the model again
  const page = await openChat(context, hub);
  await chooseDevice(page);
  await set(page, { max_tokens: String(few_tokens) });
  await page.locator("#pool-text", { hasText: /^this device$/ }).waitFor();

  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await page.reload();
  await page.locator("#pool-text", { hasText: "this device, loading" }).waitFor();
  assert.match(await page.locator("#welcome-words").textContent(), /what you write does not leave it/);
  const words = "Tell me of the sea.";
  await ask(page, words);
  await page.locator("#hint", { hasText: "the answer begins when it is ready" }).waitFor();
  assert.equal(await page.locator("#settings").isVisible(), false);
  const { content, facts } = await lastAnswer(page);
  assert.equal(facts.place, "device");
  assert.equal(content, (await greedy(hub, words, few_tokens)).text);
  assert.ok(!asked.includes("/v1/chat/completions"), "the hub was not asked");
  assert.deepEqual(page.errors, []);
});

// Every allocation of the GPU fails.
const too_small = `
GPUDevice.prototype.popErrorScope = async () => new GPUOutOfMemoryError("no memory");
`;

test("a GPU that is too small loads no byte of the model", async (t) => {
  const context = await browser.newContext();
  t.after(() => context.close());
  await takeWay(context, "tab");      // the modules of a SharedWorker cannot be replaced
  const gpu = readFileSync(new URL("../../web-worker/browser/gpu.js", import.meta.url), "utf8");
  await context.route("**/wasm/gpu.js", (route) => route.fulfill({
    contentType: "text/javascript", body: gpu.replace(/\n(?=const |export )/, `\n${too_small}`),
  }));
  const asked = [];
  context.on("request", (request) => asked.push(new URL(request.url()).pathname));
  const page = await openChat(context, hub);
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  assert.match(await deviceSettled(page), /^The GPU has too little memory for the model/);
  assert.equal(await page.locator("#device-load").isVisible(), false);
  assert.deepEqual(asked.filter((path) => path.startsWith("/api/package/")), []);
});

// As in Firefox and Safari: a handle is exclusive, whatever mode is asked for.
const exclusive = `
const createHandle = FileSystemFileHandle.prototype.createSyncAccessHandle;
FileSystemFileHandle.prototype.createSyncAccessHandle = function() { return createHandle.call(this); };
`;

test("two tabs load the model at once where file handles are exclusive", async (t) => {
  const context = await browser.newContext();
  t.after(() => context.close());
  await takeWay(context, "tab");
  const module = readFileSync(new URL("../../static/js/storage.js", import.meta.url), "utf8");
  await context.route("**/wasm/storage.js", (route) => route.fulfill({
    contentType: "text/javascript", body: exclusive + module,
  }));
  const tabs = [await openChat(context, hub), await openChat(context, hub)];
  for (const page of tabs) {
    await page.locator("#open-settings").click();
    await page.locator("#place").selectOption("device");
    await page.locator("#device-load").waitFor();
  }
  // The second tab may have seen the first one's download begin, which hides its button.
  await Promise.all(tabs.map((page) => page.locator("#device-load").evaluate((node) => node.click())));
  for (const page of tabs) assert.match(await deviceSettled(page), /^Ready/);
});
