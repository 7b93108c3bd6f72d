// What the browser keeps of conversations, in a real Chromium without a GPU: it is encrypted. Files of pages of "this
// device": wasm/page_files.js in a Dedicated Worker over the browser's own storage, with bytes that the test makes
// instead of a model, so that stories of full, broken and deleted storage take no model.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask, keptWhen, titles } from "./support/chat_page.mjs";
import { openChat, set } from "./support/device_page.mjs";
import { Hub } from "./support/hub.mjs";
import { filesWith, keptOf, spoil } from "./support/kept_pages.mjs";
import { launch, launchProfile } from "./support/tab.mjs";
import { openTestWorker } from "./support/test_worker.mjs";

// A worker whose model holds `text`. It answers {find: tokens, conversation} with the number of tokens that came from
// pages, and {keep: tokens} when the pages are written. A page is its tokens, then `page_bytes` for each of them.
const program = (page_bytes) => `
import { PageFiles } from "./page_files.js";
let held = 0, text = new Uint32Array(), ended = () => {};
const files = new PageFiles({
  takePage(before, bytes) {
    const page = new Uint32Array(bytes.buffer, 4, new DataView(bytes.buffer).getUint32(0, true));
    let common = 0;
    const first = held - held % 128;
    while (common < page.length && page[common] === text[first + common]) common += 1;
    held = Math.max(held, first + common);
    return common === 128 ? "wholly" : "partly";
  },
  endOfPages: () => ended(),
  readPage(before, turn, index, num_tokens) {
    const tokens = text.slice(index * 128, num_tokens), bytes = new Uint8Array(4 + (4 + ${page_bytes}) * tokens.length);
    new DataView(bytes.buffer).setUint32(0, tokens.length, true);
    bytes.set(new Uint8Array(tokens.buffer), 4);
    files.given(bytes);
  },
}, (report) => postMessage({ report }));
onmessage = async ({ data }) => {
  if (data.remember !== undefined) {
    files.remember(data.remember, data.model ?? "a model");
    await files.opened;
  } else if (data.find) {
    text = new Uint32Array(data.find);
    held = 0;
    files.begin(data.conversation ?? "one");
    await new Promise((end) => { ended = end; files.find(text, 0); });
  } else if (data.keep) {
    text = new Uint32Array(data.keep);
    files.begin(data.conversation ?? "one");
    files.keep(0, text);
  } else if (data.forget) files.forget(data.forget);
  await files.work;
  postMessage({ done: held });
};`;

let browser;
let hub;
before(async () => {
  browser = await launch([], { webgpu: false });
  hub = await Hub.start(["--backend", "local"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// Opens a page with such a worker; say(message) resolves to {held, report}, its answer and the last report.
async function open(t, page_bytes = 16) {
  const { context, page } = await openTestWorker(t, browser, hub, program(page_bytes));
  const say = (message) => page.evaluate(async (one) => {
    const { done, error } = await globalThis.say(one);
    return { held: done, error, report: globalThis.lastReport() };
  }, message);
  return { context, page, say };
}
const textOf = (num, first = 7) => Array.from({ length: num }, (_, i) => first + i * 3);
const names = async (page) => (await page.evaluate(keptOf)).files.sort();

test("pages come back, an edit keeps what is before it, and another model finds none", async (t) => {
  const { page, say } = await open(t);
  const text = textOf(300);
  await say({ keep: text });
  assert.deepEqual(await page.evaluate(keptOf), { has_folder: false, files: [], databases: [] }, "without consent");

  await say({ remember: true });
  const { report } = await say({ keep: text });
  assert.equal((await names(page)).length, 3);
  assert.ok(report.is_on && report.bytes > 300 * 20 && report.bytes < report.bytes_max, JSON.stringify(report));
  assert.equal((await say({ find: [...text, 1, 2] })).held, 300);
  const edited = text.slice();
  edited[280] += 1;
  assert.equal((await say({ find: edited })).held, 280);
  edited[5] += 1;
  assert.equal((await say({ find: edited })).held, 5, "the beginning of an edited page is used");

  // A longer text replaces the part that it continues; a branch in another conversation does not.
  await say({ find: [...text, 1, 2] });
  await say({ keep: [...text, 1, 2] });
  assert.equal((await names(page)).length, 3);
  await say({ find: [...text, 3], conversation: "two" });
  await say({ keep: [...text, 3], conversation: "two" });
  assert.equal((await names(page)).length, 4);

  await say({ remember: true, model: "another" });
  assert.equal((await say({ find: text })).held, 0);
  await say({ remember: true });
  await say({ forget: "two" });
  assert.equal((await names(page)).length, 3, "the pages that another conversation uses stay");
  await say({ forget: "one" });
  assert.deepEqual(await names(page), []);
});

test("an altered file is refused and deleted", async (t) => {
  const { page, say } = await open(t);
  await say({ remember: true });
  const text = textOf(200);
  for (const offset of [3, 100, -1]) {
    await say({ find: text });
    await say({ keep: text });
    assert.equal((await names(page)).length, 2);
    await page.evaluate(spoil, offset);
    assert.equal((await say({ find: text })).held, 0);
    assert.equal((await names(page)).length, 1, "the second page is not reached");
  }
});

test("where storage is full, the rest is not kept, and the page says so", async (t) => {
  const { context, page, say } = await open(t, 8192);
  const session = await context.newCDPSession(page);
  await say({ remember: true });
  assert.equal((await say({ keep: textOf(256) })).report.trouble, "");
  await session.send("Storage.overrideQuotaForOrigin", { origin: hub.url, quotaSize: 5 << 20 });
  const text = textOf(1000, 5);
  await say({ find: text });
  const { report } = await say({ keep: text });
  assert.equal(report.trouble, "full", JSON.stringify(report));
  const { held } = await say({ find: text });
  assert.ok(held >= 128 && held < 1000 && held % 128 === 0, `the first pages of the newest text are kept: ${held}`);
  assert.equal((await say({ find: textOf(256) })).held, 0, "the older text made room");
});

test("after the data is deleted in another tab, nothing is written", async (t) => {
  const { context, page, say } = await open(t);
  await say({ remember: true });
  await say({ keep: textOf(300) });
  const other = await context.newPage();
  await other.goto(`${hub.url}/status.html`);
  await other.evaluate(async () => (await import("./js/forget.js")).forgetPages());
  await say({ find: textOf(300) });
  await say({ keep: textOf(400) });
  assert.deepEqual(await page.evaluate(keptOf), { has_folder: false, files: [], databases: [] });
});

test("storage that throws is reported, and the model still gets its answer", async (t) => {
  const { page, say } = await open(t);
  await page.evaluate(async () => {
    const folder = await (await navigator.storage.getDirectory()).getFileHandle("moex-pages", { create: true });
    return folder.name;
  });
  const { report } = await say({ remember: true });
  assert.equal(report.trouble, "failed");
  assert.ok(report.message.length > 0);
  assert.equal((await say({ find: textOf(300) })).held, 0);
});

// Returns the records of the chat's database, as they are.
const records = (page) => page.evaluate(() => new Promise((resolve) => {
  indexedDB.open("moex-chat").onsuccess = ({ target: { result } }) => {
    result.transaction("conversations").objectStore("conversations").getAll().onsuccess = (event) => {
      result.close();
      resolve(event.target.result.map(({ id, sealed, ...plain }) => ({ id, is_sealed: Boolean(sealed), plain })));
    };
  };
}));

test("no word of a conversation is readable in the browser's profile", async (t) => {
  const profile = mkdtempSync(join(tmpdir(), "moex-profile-"));
  t.after(() => rmSync(profile, { recursive: true, force: true }));
  let context = await launchProfile(profile);
  t.after(() => context.close());
  let page = await openChat(context, hub);
  await set(page, { max_tokens: "4", system: "Periwinkle writes short letters." });
  await ask(page, "Who is Quillington the zebrafish?");
  await keptWhen(page, ({ conversations }) => conversations[0]?.messages[1]?.end);
  await context.close();
  assert.ok(filesWith(profile, ["Periwinkle"]).length > 0, "settings are stored in plain: the search finds them");
  assert.deepEqual(filesWith(profile, ["Quillington", "zebrafish"]), []);

  context = await launchProfile(profile);
  page = await openChat(context, hub);
  assert.deepEqual(await titles(page), ["Who is Quillington the zebrafish?"]);
  assert.deepEqual(page.errors, []);
});

test("a conversation of an older page is encrypted, and an altered one is not shown", async (t) => {
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await openChat(context, hub);
  const put = (record) => page.evaluate((one) => new Promise((resolve) => {
    indexedDB.open("moex-chat").onsuccess = ({ target: { result } }) => {
      const transaction = result.transaction("conversations", "readwrite");
      if (one.sealed) one.sealed = new Uint8Array(one.sealed);
      transaction.objectStore("conversations").put(one);
      transaction.oncomplete = () => {
        result.close();
        resolve();
      };
    };
  }), record);
  const message = { id: "m", role: "user", content: "An old question", at: 1, rev: 1 };
  await put({ id: "old", title: "Old", renamed_at: 0, created_at: 1, updated_at: 1, model: "", messages: [message] });
  await page.reload();
  await page.locator(".conversation-title", { hasText: "Old" }).waitFor();
  const kept = await records(page);
  assert.deepEqual(kept.find(({ id }) => id === "old"), { id: "old", is_sealed: true, plain: {} });
  assert.deepEqual(Object.keys(kept.find(({ id }) => id !== "old").plain), ["cipher"]);

  await put({ id: "old", sealed: Array.from({ length: 80 }, (_, i) => i) });
  await page.reload();
  await page.waitForFunction(() => document.getElementById("model").textContent !== "");
  assert.deepEqual(await titles(page), []);
  assert.deepEqual(page.errors, []);
});
