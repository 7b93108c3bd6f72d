// "This device" with too little GPU memory for the keys and values of a whole conversation, in a real Chromium on the
// software adapter: a part of them is in the browser's files, encrypted, and the words are those of a whole cache.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask, settled } from "./support/chat_page.mjs";
import {
  answerTo, chooseDevice, deviceOf, deviceSettled, lastAnswer, openChat, set, takeWay,
} from "./support/device_page.mjs";
import { build } from "./support/hub.mjs";
import { startSmallHub } from "./support/small_model.mjs";
import { launch } from "./support/tab.mjs";

const context_tokens = 1024, layers = 2, few_tokens = 6;
// The keys and values of a page in one layer of the small model; four of the eight pages have room,
// of which one stages the others.
const page_bytes = 2 * 2 * 128 * 32 * 4, room_bytes = 4 * page_bytes;
const long = "The old lighthouse keeper walked along the garden wall and looked at the sea. ".repeat(25);

let browser, hub;
before(async () => { [browser, hub] = await Promise.all([launch(), startSmallHub({ context_tokens, layers })]); });
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// A GPU without memory for buffers of keys and values of more than room_bytes.
const little_memory = `
const make = GPUDevice.prototype.createBuffer;
GPUDevice.prototype.createBuffer = function createBuffer(how) {
  if (how.label === "keys and values" && how.size > ${room_bytes}) {
    const error = new GPUOutOfMemoryError("no memory");
    setTimeout(() => this.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror", { error })));
  }
  return make.call(this, how);
};`;

// A page that asks for a context of 512 tokens at first.
const short_context = (text) => text.replace("context_tokens_max = 4096", "context_tokens_max = 512");

// Evicted pages that are in files alone; and in memory, because their files cannot be read.
const files_only = (text) => text.replace(/memory_bytes_max = .*/, "memory_bytes_max = 0;");
const memory_only = (text) =>
  text.replace("async readFile(layer, page, size) {", "$& throw new Error('a file was read');");

// The browser's files when the disk is full.
const full = 'throw new DOMException("full", "QuotaExceededError");';
const told = '$& new BroadcastChannel("loads").postMessage("");';
const full_disk = (text) => text.replace("handle.truncate(0);", full);

async function open(t, { is_little = false, is_short = false, is_full = false, pages = null } = {}) {
  const context = await browser.newContext();
  t.after(() => context.close());
  await takeWay(context, "tab");      // the modules of a SharedWorker cannot be replaced
  if (is_little) {
    const module = readFileSync(join(build, "web/wasm/gpu.js"), "utf8");
    await context.route("**/wasm/gpu.js", (route) => route.fulfill({
      contentType: "text/javascript", body: `${module}\n${little_memory}`,
    }));
  }
  if (is_short) {
    const module = readFileSync("static/js/chat/device.js", "utf8");
    assert.notEqual(short_context(module), module);
    await context.route("**/js/chat/device.js", (route) => route.fulfill({
      contentType: "text/javascript", body: short_context(module),
    }));
  }
  if (pages) {
    const module = readFileSync(join(build, "web/wasm/evicted_pages.js"), "utf8");
    assert.notEqual(pages(module), module);
    await context.route("**/wasm/evicted_pages.js", (route) => route.fulfill({
      contentType: "text/javascript", body: pages(module),
    }));
  }
  // Each load of the model posts a message to the page. Requests for a module are no measure: the browser may make two
  // for one load, or none.
  await context.addInitScript(() => {
    globalThis.num_loads = 0;
    globalThis.loads = new BroadcastChannel("loads");
    globalThis.loads.onmessage = () => { globalThis.num_loads += 1; };
  });
  if (is_full) {
    const module = readFileSync(join(build, "web/wasm/evicted_pages.js"), "utf8");
    assert.notEqual(full_disk(module), module);
    await context.route("**/wasm/evicted_pages.js", (route) => route.fulfill({
      contentType: "text/javascript",
      body: full_disk(module).replace("this.name = crypto.randomUUID();", told),
    }));
  }
  const page = await openChat(context, hub);
  page.numLoads = () => page.evaluate(() => globalThis.num_loads);
  await chooseDevice(page);
  if (is_little) {
    // The GPU may tell of its lack of memory when the model is ready already; then it is loaded again.
    await page.waitForFunction(() => globalThis.moexDevice?.is_paged);
    assert.match(await deviceSettled(page), /^Ready/);
  }
  await set(page, { max_tokens: String(few_tokens) });
  return page;
}

// Returns the sizes of the files of evicted pages.
const evictedFiles = (page) => page.evaluate(async () => {
  const root = await navigator.storage.getDirectory();
  const all = await root.getDirectoryHandle("moex-evicted", { create: true });
  const sizes = [];
  for await (const folder of all.values()) {
    for await (const file of folder.values()) sizes.push((await file.getFile()).size);
  }
  return sizes;
});

test("a long conversation has the same words with half of its pages in files", async (t) => {
  const whole = await open(t);
  const little = await open(t, { is_little: true, pages: files_only });
  const kept = await open(t, { is_little: true, pages: memory_only });
  assert.doesNotMatch(await whole.locator("#device-words").textContent(), /browser's files/);
  assert.match(await little.locator("#device-words").textContent(), /a part is kept in this browser's files/);
  assert.equal((await deviceOf(whole)).is_paged, false);
  assert.equal((await deviceOf(little)).is_paged, true);
  assert.equal((await deviceOf(little)).context_tokens, context_tokens);

  const next = "And then?";
  const turns = [];
  for (const page of [whole, little, kept]) {
    const first = await answerTo(page, long);
    assert.ok(first.facts.total_tokens > 3 * 128 + few_tokens, `${first.facts.total_tokens} tokens`);
    await ask(page, next);
    const second = await lastAnswer(page);
    const { cached_tokens } = second.facts;
    assert.ok(cached_tokens > 3 * 128, `${cached_tokens} of ${first.facts.total_tokens} tokens are kept`);
    turns.push([first.content, second.content, cached_tokens]);
  }
  assert.deepEqual(turns[1], turns[0]);
  assert.deepEqual(turns[2], turns[0]);

  assert.deepEqual(await evictedFiles(whole), []);
  const files = await evictedFiles(little);
  assert.ok(files.length >= 1, `${files.length} files`);
  assert.ok(files.every((size) => size === layers * (page_bytes + 28)), "each layer of a page is sealed");
  assert.deepEqual([...whole.errors, ...little.errors, ...kept.errors], []);
});

test("a full disk is named, and the model is not loaded again", async (t) => {
  const page = await open(t, { is_little: true, is_full: true });
  const num_loads = await page.numLoads();
  assert.ok(num_loads > 1, "each load of the model counts: the first one found too little memory");
  await ask(page, long);
  const words = page.locator("#device-words.problem");
  await words.waitFor({ state: "attached" });
  assert.match(await words.textContent(), /This browser's storage is full/);
  await settled(page);
  assert.equal(await page.numLoads(), num_loads);
  assert.deepEqual(page.errors, []);
});

test("a conversation that is longer than the context is given a longer one", async (t) => {
  const [whole, grown] = [await open(t), await open(t, { is_short: true })];
  assert.equal((await deviceOf(grown)).context_tokens, 512);
  const longer = `${long} ${long.slice(0, long.length / 3)}`;
  const wanted = await answerTo(whole, longer);
  assert.ok(wanted.facts.total_tokens > 512, `${wanted.facts.total_tokens} tokens`);
  const answer = await answerTo(grown, longer);
  assert.equal(answer.content, wanted.content);
  assert.equal((await deviceOf(grown)).context_tokens, 1024);
  assert.equal((await deviceOf(grown)).is_paged, true);
  assert.deepEqual([...whole.errors, ...grown.errors], []);
});
