// "This device" in several tabs of one browser: one copy of the model on the GPU and one download. Each way on which
// tabs can share it (static/js/chat/model_link.js) is tried with the others switched off. The model is a small one.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { ask, keptNow, settled } from "./support/chat_page.mjs";
import {
  chooseDevice, deviceOf, deviceSettled, lastAnswer, openChat, set, takeWay, tryDevice,
} from "./support/device_page.mjs";
import { Front } from "./support/front.mjs";
import { startSmallHub } from "./support/small_model.mjs";
import { launch } from "./support/tab.mjs";

const questions = ["Tell me of a garden.", "What grows in it?"];
const many = 64;

let browser, hub;
before(async () => {
  [hub, browser] = await Promise.all([startSmallHub({ layers: 2 }), launch()]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// A proxy before the hub, which counts the bytes of the model's files that were asked for, and notes what is sent to
// the hub. (A browser context does not show the requests of a SharedWorker.)
async function counting(t) {
  const front = await Front.start(hub, (request, response, pass) => {
    delete request.headers.origin;      // the header names the proxy, so the hub would refuse the request
    const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
    if (!["GET", "HEAD"].includes(request.method)) front.told.push(request.url);
    if (request.url.startsWith("/api/package/") && range) front.fetched += Number(range[2]) - Number(range[1]) + 1;
    return pass();
  });
  Object.assign(front, { fetched: 0, told: [] });
  t.after(() => front.stop());
  return front;
}
async function openWay(t, way, site) {
  const context = await browser.newContext();
  t.after(() => context.close());
  await takeWay(context, way);
  return { context, open: () => openChat(context, site) };
}
// Chooses this device in a further tab: the model is here.
async function joinIn(page) {
  await set(page, { place: "device", max_tokens: String(many), temperature: "0" });
  assert.match(await deviceSettled(page), /^Ready/);
}

// Returns the number of workers that compute: of tabs, and SharedWorkers.
async function computing(context) {
  const isComputing = (url) => url.endsWith("/wasm/local_worker.js");
  const own = context.pages().flatMap((page) => page.workers()).filter((worker) => isComputing(worker.url()));
  const session = await browser.newBrowserCDPSession();
  const { targetInfos } = await session.send("Target.getTargets");
  await session.detach();
  const shared = targetInfos.filter(({ type, url }) => type === "shared_worker" && isComputing(url));
  return { own: own.length, shared: shared.length };
}

const newChat = (page) => page.locator("#new-chat").evaluate((node) => node.click());
// Resolves in the middle of the answer.
const answering = (page) => page.waitForFunction(() => (
  document.querySelector(".message.assistant:last-child .body")?.textContent.length > 10));
// Resolves to the text of the shown answer, when it has ended. The tabs share what is kept, so that it says nothing.
async function shown(page) {
  await settled(page);
  assert.equal(await page.locator(".message.assistant").last().locator(".place").textContent(), "this device");
  return page.locator(".message.assistant .body").last().textContent();
}
async function answerIn(page, words) {
  await newChat(page);
  await ask(page, words);
  return shown(page);
}

for (const way of ["shared", "tab", "heard"]) {
  test(`${way}: two tabs share one copy, and the model outlives the first tab`, async (t) => {
    const front = await counting(t);
    const { context, open } = await openWay(t, way, front);
    const first = await open();
    await chooseDevice(first);
    await set(first, { max_tokens: String(many) });
    const { bytes } = await first.evaluate(async () => {
      const files = await (await fetch("/api/package")).json();
      const texts = "tokenizer|tokenizer_config|generation_config";
      const read = new RegExp(`^(weights/.*|manifest\\.json|hub\\.safetensors|(${texts})\\.json)$`);
      return { bytes: files.files.filter(({ name }) => read.test(name)).reduce((sum, one) => sum + one.bytes, 0) };
    });
    assert.equal(front.fetched, bytes, "each byte was fetched once");
    const alone = await deviceOf(first);
    assert.equal(alone.way, way === "shared" ? "shared" : "tab");
    assert.ok(alone.gpu_bytes > 0);

    const second = await open();
    await joinIn(second);
    const both = await Promise.all([first, second].map(deviceOf));
    assert.deepEqual(both.map(({ home }) => home), [alone.home, alone.home]);
    assert.equal(both[1].gpu_bytes, alone.gpu_bytes);
    assert.deepEqual(await computing(context), way === "shared" ? { own: 0, shared: 1 } : { own: 1, shared: 0 });
    assert.equal(front.fetched, bytes, "the second tab fetched nothing");

    // Two questions at once: the second one waits, and each tab gets the answer to its own.
    const expected = [await answerIn(first, questions[0]), await answerIn(first, questions[1])];
    assert.notEqual(expected[0], expected[1]);
    const hint = first.locator("#hint", { hasText: "a question of another tab first" });
    const waits = hint.waitFor().then(() => true, () => false);
    for (let has_waited = false; !has_waited;) {      // the first answer may end before the second question is asked
      for (const page of [first, second]) await newChat(page);
      await ask(second, questions[0]);
      await answering(second);
      await ask(first, questions[1]);
      assert.deepEqual([await shown(second), await shown(first)], expected);
      has_waited = await Promise.race([waits, false]);
    }

    // The tab that computes, or that came first, is closed in the middle of the other's answer.
    await newChat(second);
    await ask(second, questions[0]);
    await answering(second);
    await first.close();
    assert.equal(await shown(second), expected[0], "not a word is lost or doubled");
    // Without a SharedWorker the second tab computes itself from now on, perhaps after its answer.
    if (way !== "shared") await second.waitForFunction((old) => globalThis.moexDevice.home !== old, alone.home);
    const { home } = await deviceOf(second);
    assert.equal(home === alone.home, way === "shared");
    assert.equal(front.fetched, bytes);
    assert.deepEqual(front.told, [], "nothing was sent to the hub");
    assert.deepEqual(second.errors, []);
  });
}

test("shared: an error of the lent thread that writes files is told", async (t) => {
  const front = await Front.changing(hub, "/wasm/lent_store_worker.js", () => 'throw new Error("out of luck");');
  t.after(() => front.stop());
  const { open } = await openWay(t, "shared", front);
  assert.match(await tryDevice(await open()), /out of luck/);
});

test("shared: an error of the SharedWorker is told", async (t) => {
  const front = await Front.changing(hub, "/wasm/local_worker.js", (program) => `${program}
    new BroadcastChannel("fail").onmessage = () => { throw new Error("out of luck"); };`);
  t.after(() => front.stop());
  const { open } = await openWay(t, "shared", front);
  const page = await open();
  assert.match(await tryDevice(page), /^Ready/);
  assert.equal((await deviceOf(page)).way, "shared");
  await page.evaluate(() => new BroadcastChannel("fail").postMessage(""));
  await page.locator("#device-words.problem", { hasText: "out of luck" }).waitFor({ state: "attached" });
});

// Asks in the open conversation of the only tab. Resolves to the words, and to the number of the prompt's tokens that
// were computed for them.
async function turn(page, words) {
  const before = (await keptNow(page)).conversations.flatMap(({ messages }) => messages).length;
  await ask(page, words);
  while ((await keptNow(page)).conversations.flatMap(({ messages }) => messages).length < before + 2) {
    await new Promise((go) => { setTimeout(go, 50); });
  }
  const { content, facts, end } = await lastAnswer(page);
  assert.equal(facts.place, "device", end?.words);
  return { content, computed: facts.prompt_tokens - facts.cached_tokens };
}

test("shared: after a reload the model is on the GPU, and only new tokens are computed", async (t) => {
  const { open } = await openWay(t, "shared", hub);
  const page = await open();
  await chooseDevice(page);
  await set(page, { max_tokens: "8" });
  const plain = [await turn(page, questions[0]), await turn(page, questions[1])];
  const { home } = await deviceOf(page);
  await newChat(page);
  assert.equal((await turn(page, questions[0])).content, plain[0].content);
  await page.reload();
  assert.match(await deviceSettled(page), /^Ready/);
  assert.equal((await deviceOf(page)).home, home);
  assert.deepEqual(await turn(page, questions[1]), plain[1], "as without a reload, and nothing was kept on the disk");
  assert.deepEqual(page.errors, []);

  // The hub's place frees the GPU; the model comes back when this device is chosen again.
  await set(page, { place: "hub" });
  await set(page, { place: "device" });
  assert.match(await deviceSettled(page), /^Ready/);
  await newChat(page);
  assert.equal((await turn(page, questions[0])).content, plain[0].content);
  assert.equal((await deviceOf(page)).home, home);

  // Without a chat page the model stays, until all data is deleted.
  await page.goto(`${hub.url}/favicon.svg`);
  assert.deepEqual(await page.evaluate(aroundForgetting), { home, before: true, after: false });
});

// Returns whether the model is ready before and after all data is deleted, seen by a session of its own.
async function aroundForgetting() {
  await new Promise((held) => {
    navigator.locks.request("moex-session-story", () => {
      held();
      return new Promise(() => {});
    });
  });
  const how = { name: "moex-model-1 /", type: "module", extendedLifetime: true };
  const { port } = new SharedWorker("/wasm/local_worker.js", how);
  const look = () => new Promise((resolve) => {
    port.onmessage = ({ data: { type, payload } }) => {
      if (type === "ACK") resolve({ home: payload.home, is_ready: payload.reports.some(({ ready }) => ready) });
    };
    port.postMessage({ type: "START_SESSION", sessionId: "story", payload: { key: "", hub_key: "" } });
  });
  const { home, is_ready: before } = await look();
  new BroadcastChannel("moex-forget").postMessage("forget");
  for (;;) {
    const { is_ready: after } = await look();
    if (!after) return { home, before, after };
  }
}
