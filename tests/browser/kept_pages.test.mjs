// What the browser keeps of conversations, in a real Chromium without a GPU: it is encrypted. Files of pages of "this
// device": wasm/page_files.js in a Dedicated Worker over the browser's own storage, with bytes that the test makes
// instead of a model, so that stories of full, broken and deleted storage take no model.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { leavingState, statesOfText } from "../../static/js/kept_pages.js";
import { ask, keptWhen, titles } from "./support/chat_page.mjs";
import { openChat, set } from "./support/device_page.mjs";
import { Hub } from "./support/hub.mjs";
import { filesWith, keptOf, spoil } from "./support/kept_pages.mjs";
import { launch, launchProfile } from "./support/tab.mjs";
import { openTestWorker } from "./support/test_worker.mjs";

// A worker whose model holds `text`. It answers {find: tokens, conversation} with the number of tokens that came from
// pages and with what was given, and {keep: tokens, states} when the pages are written. A page has its number of
// tokens, its first position, whether it is a state, its tokens, then `page_bytes` for each token, or `state_bytes`.
const head_bytes = 12, sealed_bytes = 28;
const program = (page_bytes, state_bytes, quota) => `
import { PageFiles } from "./page_files.js";
if (${quota}) StorageManager.prototype.estimate = async () => ({ usage: 0, quota: ${quota} });
let held = 0, written = 0, has_states = false, given = [], text = new Uint32Array(), ended = () => {};
const files = new PageFiles({
  takePage(before, bytes) {
    const [count, first, is_state] = new Uint32Array(bytes.buffer, 0, 3);
    const page = new Uint32Array(bytes.buffer, ${head_bytes}, count);
    given.push((is_state ? "state " : "page ") + (first + count));
    let common = 0;
    while (common < page.length && page[common] === text[first + common]) common += 1;
    if (is_state && (common < count || first + count > written)) return "refused";
    if (!is_state) written = Math.max(written, first + common);
    held = is_state ? first + count : has_states ? held : written;
    return common === 128 ? "wholly" : "partly";
  },
  endOfPages: () => ended(),
  readPage(before, turn, index, num_tokens, is_state) {
    const tokens = text.slice(index * 128, num_tokens);
    const size = is_state ? ${state_bytes} : ${page_bytes} * tokens.length;
    const bytes = new Uint8Array(${head_bytes} + 4 * tokens.length + size);
    new Uint32Array(bytes.buffer, 0, 3).set([tokens.length, index * 128, Number(is_state)]);
    bytes.set(new Uint8Array(tokens.buffer), ${head_bytes});
    files.given(bytes);
  },
}, (report) => postMessage({ report }));
onmessage = async ({ data }) => {
  given = [];
  if (data.remember !== undefined) {
    files.remember(data.remember, data.model ?? "a model");
    await files.opened;
  } else if (data.find) {
    text = new Uint32Array(data.find);
    held = written = 0;
    has_states = data.has_states ?? false;
    files.begin(data.conversation ?? "one");
    await new Promise((end) => { ended = end; files.find(text, 0, has_states ? 0 : null); });
  } else if (data.keep) {
    text = new Uint32Array(data.keep);
    files.begin(data.conversation ?? "one");
    files.keep(0, text, data.states);
  } else if (data.forget) files.forget(data.forget);
  await files.work;
  postMessage({ done: { held, given } });
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

// Opens a page with such a worker; say(message) resolves to {held, given, report}, its answer and the last report.
async function open(t, page_bytes = 16, state_bytes = 0, quota = 0) {
  const { context, page } = await openTestWorker(t, browser, hub, program(page_bytes, state_bytes, quota));
  const say = (message) => page.evaluate(async (one) => {
    const { done, error } = await globalThis.say(one);
    return { ...done, error, report: globalThis.lastReport() };
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

// ---- models with recurrent states

const isState = (name) => name.endsWith(".state");
const statesIn = async (page) => (await names(page)).filter(isState);
// The bytes of files: pages with `page_bytes` for each token, and states.
const bytesOf = (num_tokens, page_bytes, num_states, state_bytes, state_tokens) => (
  Math.ceil(num_tokens / 128) * (head_bytes + sealed_bytes) + num_tokens * (4 + page_bytes)
  + num_states * (head_bytes + sealed_bytes + state_bytes) + 4 * state_tokens);

test("states are kept at the ends that the model names, and the newest one is taken", async (t) => {
  const state_bytes = 50000;
  const { page, say } = await open(t, 16, state_bytes);
  await say({ remember: true });
  const text = textOf(700), states = [128, 512, 700];
  const { report } = await say({ keep: text, states });
  assert.equal(report.bytes, bytesOf(700, 16, 3, state_bytes, 128 + 128 + (700 - 640)));
  assert.equal((await names(page)).length, 6 + 3);
  assert.equal(report.session.pages, 6);
  const find = (tokens) => say({ find: tokens, has_states: true });

  const pages = (num) => Array.from({ length: num }, (_, i) => `page ${Math.min((i + 1) * 128, 700)}`);
  const longer = await find([...text, 1, 2]);
  assert.deepEqual([longer.held, longer.given], [700, [...pages(6), "state 700"]]);
  // The last token is computed in any case, so that a state behind it is of no use.
  const same = await find(text);
  assert.deepEqual([same.held, same.given], [512, [...pages(4), "state 512"]]);
  const edited = (at) => [...text.slice(0, at), 2, ...text.slice(at + 1)];
  assert.deepEqual((await find(edited(600))).given, [...pages(4), "state 512"]);
  assert.deepEqual((await find(edited(400))).given, [...pages(1), "state 128"]);
  assert.deepEqual((await find(edited(5))).given, [], "without a state no page is read");

  // The page of the text's end, and its state, are replaced by a longer one.
  await find([...text, 1, 2]);
  await say({ keep: [...text, 1, 2], states: [128, 512, 702] });
  assert.equal((await names(page)).length, 6 + 3);
  assert.equal((await find([...text, 1, 2, 3])).held, 702);
});

test("an altered state, or an altered page before it, leads to an earlier state", async (t) => {
  const { page, say } = await open(t, 16, 3000);
  await say({ remember: true });
  const text = textOf(400);
  const kept = async () => {
    await say({ find: text, has_states: true });
    await say({ keep: text, states: [128, 256, 384] });
    assert.equal((await names(page)).length, 4 + 3);
  };
  const find = async () => {
    const { held, given } = await say({ find: [...text, 1], has_states: true });
    return [held, given];
  };
  const [last] = (await kept(), await find());
  assert.equal(last, 384);
  const before = await names(page);
  // A page and its state differ in their names' ends only.
  const lastState = await page.evaluate(async () => {
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-pages");
    const states = [];
    for await (const name of folder.keys()) if (name.endsWith(".state")) states.push(name);
    const ends = new Map(states.map((name) => [name.split(".")[1], name]));
    const begins = new Set(states.map((name) => name.split(".")[0]));
    return [...ends].find(([end]) => !begins.has(end))[1];
  });
  await page.evaluate(spoil, [100, lastState]);
  assert.deepEqual(await find(), [256, ["page 128", "page 256", "state 256"]]);
  assert.deepEqual(await names(page), before.filter((name) => name !== lastState));

  await kept();
  await page.evaluate(spoil, [100, lastState.replace(".state", "")]);
  assert.deepEqual(await find(), [256, ["page 128", "page 256", "state 256"]]);
  assert.equal((await names(page)).length, 4 + 3 - 2, "a state leaves with its page");
});

// A tenth of the quota is for pages, and half of that for states. (Chromium reports a quota of its own choice, whatever
// the developer tools have set.)
async function openSmall(t, state_bytes) {
  const opened = await open(t, 16, state_bytes, 20 << 20);
  const { report } = await opened.say({ remember: true });
  assert.equal(report.bytes_max, 2 << 20);
  return opened;
}

test("the states of the least recently used conversation leave first, and its pages stay", async (t) => {
  const { page, say } = await openSmall(t, 200 << 10);      // room for five
  const texts = { one: textOf(300, 1), two: textOf(300, 2), three: textOf(600, 3), four: textOf(500, 4) };
  const keep = (conversation, states) => say({ keep: texts[conversation], conversation, states });
  const held = async (conversation) => (
    await say({ find: [...texts[conversation], 9], conversation, has_states: true })).held;
  await keep("one", [128, 256]);
  await keep("two", [128, 256]);
  assert.equal((await statesIn(page)).length, 4);
  await keep("three", [128, 256, 600]);
  assert.equal((await statesIn(page)).length, 5);
  assert.equal((await names(page)).length, 3 + 3 + 5 + 5, "no page left");
  assert.deepEqual([await held("one"), await held("three"), await held("two")], [0, 600, 256]);

  // `two` was used last: the states of `three` leave.
  const { report } = await keep("four", [128, 256, 384]);
  assert.deepEqual([report.trouble, (await statesIn(page)).length], ["", 5]);
  assert.deepEqual([await held("four"), await held("two"), await held("three")], [384, 256, 0]);
});

test("states of the text in use leave for later ones of it only", async (t) => {
  const { page, say } = await openSmall(t, 200 << 10);
  const text = textOf(1100);
  const keep = (num, states) => say({ keep: text.slice(0, num), states });
  const held = async (num) => (await say({ find: [...text.slice(0, num), 1, 2], has_states: true })).held;
  // Turn by turn: the state after 128 tokens is asked for each time.
  for (const num of [256, 384, 512, 640, 768]) await keep(num, [128, num]);
  assert.equal((await statesIn(page)).length, 5);
  assert.deepEqual([await held(768), await held(200)], [768, 128]);
  await keep(1024, [128, 896, 1024]);
  assert.equal((await statesIn(page)).length, 5);
  assert.deepEqual([await held(1024), await held(900), await held(200)], [1024, 896, 128]);

  // More than there is room for: the last ones stay, however often they are asked for.
  for (let i = 0; i < 2; i += 1) await keep(1024, [128, 256, 384, 512, 640, 768, 896, 1024]);
  assert.equal((await statesIn(page)).length, 5);
  assert.deepEqual([await held(1024), await held(900), await held(500)], [1024, 896, 0]);
});

test("where there is no room for a state, pages are kept, and the page says so", async (t) => {
  const { context, page, say } = await openSmall(t, 900 << 10);
  await say({ keep: textOf(300, 1), conversation: "one", states: [256] });
  assert.equal((await statesIn(page)).length, 1);
  // The disk is full although the budget is not.
  const session = await context.newCDPSession(page);
  await session.send("Storage.overrideQuotaForOrigin", { origin: hub.url, quotaSize: 400 << 10 });
  const { report } = await say({ keep: textOf(300, 2), conversation: "two", states: [128] });
  assert.equal(report.trouble, "full");
  assert.ok((await names(page)).length > 0, "pages are kept");
  assert.equal((await say({ find: textOf(301, 2), conversation: "two", has_states: true })).held, 0);

  const large = await openSmall(t, 1100 << 10);
  const told = await large.say({ keep: textOf(300), states: [256] });
  assert.equal(told.report.trouble, "full");
  assert.deepEqual([(await names(large.page)).length, (await statesIn(large.page)).length], [3, 0]);
});

test("states thin out between others, and large ones are four of a text", () => {
  assert.deepEqual([statesOfText(66e6), statesOfText(1e9), statesOfText(40e6), statesOfText(1000)], [4, 4, 6, 8]);
  const records = (...positions) => positions.map((position) => ({ id: `${position}.state`, position }));
  const leaves = (positions, wanted, next) => leavingState(records(...positions), new Set(wanted), next)?.position;
  assert.equal(leaves([0, 1, 2, 3, 4, 5], [], 6), 0);
  assert.equal(leaves([1, 2, 3, 4, 5], [], 6), 2);
  assert.equal(leaves([1, 2, 3, 4, 5], ["2.state"], 6), 1);
  assert.equal(leaves([1, 5], ["1.state", "5.state"], 6), 1);
  assert.equal(leaves([5, 9], ["5.state", "9.state"], 1), undefined, "not for an earlier one");
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
