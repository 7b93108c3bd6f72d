// "Here at once, then by the hub" in the chat page, in a real Chromium on the software adapter: a small model in the
// browser writes a draft, and the hub's answer of the larger model is offered in its place. Both say where they were
// computed; on this device only, nothing leaves it.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask, keptNow, keptWhen, settled } from "./support/chat_page.mjs";
import { deviceSettled, greedy, lastAnswer, openChat, prompt, set, takeWay } from "./support/device_page.mjs";
import { Hub, build, run } from "./support/hub.mjs";
import { packSmall } from "./support/small_model.mjs";
import { launch } from "./support/tab.mjs";

const num_tokens = 12;

let folder, small, browser, hub;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "moex-small-"));
  [small, browser] = await Promise.all([packSmall(folder, { layers: 2 }), launch()]);
  hub = await Hub.start(["--backend", "local", "--arithmetic", "exact", "--device-model", small]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
  rmSync(folder, { recursive: true, force: true });
});

// Resolves to what the small model answers to the prompt, by moex-hub's own code.
async function smallAnswer() {
  const { code, stdout, stderr } = await run(join(build, "moex-hub"), ["generate", "--model", small, "--prompt", prompt,
    "--chat", "--arithmetic", "exact", "--temperature", "0", "--max-tokens", String(num_tokens)]);
  assert.equal(code, 0, stderr);
  return stdout.replace(/\n$/, "");
}

const place = (page) => page.locator(".facts .place").last().textContent();
const shown = (page) => page.locator(".message.assistant .body").last().textContent();
const offer = (page, words) => page.locator(".offer", { hasText: words }).waitFor();
async function speak(page, language) {
  await page.locator("#open-settings").click();
  await page.locator("#language").selectOption(language);
  await page.locator("#close-settings").click();
}
const pathsOf = (requests) => requests.map((request) => new URL(request.url()).pathname);

// Chooses the place and loads the small model, after consent.
async function loadSmall(page) {
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("refine");
  await page.locator("#device-words", { hasText: /^A small model takes/ }).waitFor();
  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /^Ready/);
  await page.locator("#close-settings").click();
  await set(page, { temperature: "0", max_tokens: String(num_tokens) });
}

test("the hub's answer is offered in the place of this device's draft", async (t) => {
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await openChat(context, hub);
  const requests = [];
  context.on("request", (request) => requests.push(request));
  // The hub's answers wait until the story lets them through.
  let letThrough = () => {};
  await context.route("**/v1/chat/completions", async (route) => {
    await new Promise((resolve) => { letThrough = resolve; });
    await route.continue();
  });

  const expected = { draft: await smallAnswer(), better: (await greedy(hub, prompt, num_tokens)).text };
  await loadSmall(page);
  assert.equal(await page.locator("#pool-text").textContent(), "this device, then the hub");
  assert.match(await page.locator("#welcome-words").textContent(), /goes to the hub, too/);

  const asked = page.waitForRequest("**/v1/chat/completions");
  await ask(page, prompt);
  await asked;
  await offer(page, "The hub writes a better one.");
  await page.locator(".facts .place").waitFor();
  assert.equal(await place(page), "this device, small");
  assert.equal((await shown(page)).trim(), expected.draft.trim(), "the draft is whole before the hub has said a word");
  assert.equal(await page.locator("#stop").isVisible(), true);
  letThrough();
  await offer(page, "The hub has a better answer.");
  await settled(page);
  assert.equal((await shown(page)).trim(), expected.draft.trim(), "it is offered, not forced");

  await speak(page, "de");
  await offer(page, "Der Hub hat eine bessere Antwort.");
  assert.equal(await place(page), "dieses Gerät, small");
  await speak(page, "en");
  await page.locator(".offer button").click();
  assert.equal(await place(page), "hub, moex-demo");
  assert.equal((await shown(page)).trim(), expected.better.trim());
  assert.equal(await page.locator(".offer").count(), 0);
  assert.match(await page.locator(".pager").last().textContent(), /2 of 2/);

  // The conversation goes on from the answer that is shown, also after a reload.
  await keptWhen(page, ({ conversations }) => conversations.some(({ messages, chosen }) => (
    messages.some(({ id, content }) => content.trim() === expected.better.trim()
      && Object.values(chosen).includes(id)))));
  await page.reload();
  await deviceSettled(page);
  assert.equal((await shown(page)).trim(), expected.better.trim());
  const next = page.waitForRequest("**/v1/chat/completions");
  await ask(page, "And then?");
  const { messages } = (await next).postDataJSON();
  assert.deepEqual(messages.map(({ content }) => content.trim()), [prompt, expected.better.trim(), "And then?"]);
  await page.locator(".message.assistant .facts .place", { hasText: "this device, small" }).waitFor();

  // A stop ends both; the draft stays.
  await page.locator("#stop").click();
  await settled(page);
  await offer(page, "The hub's answer was not completed.");
  const { conversations } = await keptNow(page);
  const drafts = conversations.flatMap((one) => one.messages).filter(({ facts }) => facts?.place === "drafted");
  assert.equal(drafts.length, 2);
  assert.deepEqual(page.errors, []);
});

test("with little battery the hub alone answers, and says so", async (t) => {
  const context = await browser.newContext();
  t.after(() => context.close());
  await context.addInitScript(() => {
    navigator.getBattery = async () => ({ charging: false, level: 0.1 });
    globalThis.wishes = [];
    const { postMessage } = MessagePort.prototype;
    MessagePort.prototype.postMessage = function post(message, ...others) {
      if (message?.type === "GET_TOKEN") globalThis.wishes.push(message.payload.wish);
      return postMessage.call(this, message, ...others);
    };
  });
  const page = await openChat(context, hub);
  await loadSmall(page);
  const better = (await greedy(hub, prompt, num_tokens)).text;
  await ask(page, prompt);
  const { content, facts } = await lastAnswer(page);
  assert.equal(content.trim(), better.trim());
  assert.equal(facts.place, "hub");
  assert.equal(await page.locator(".offer").count(), 0, "there is no draft");
  const { conversations } = await keptNow(page);
  assert.equal(conversations.flatMap(({ messages }) => messages).length, 2);
  const wishes = await page.evaluate(() => globalThis.wishes);
  assert.deepEqual(wishes.map(({ quality, words }) => [quality, words]), [["draft_then_best", "to_hub"]]);
  assert.deepEqual(page.errors, []);
});

test("on this device only nothing leaves it, and without the hub the draft stands", async (t) => {
  const own = await Hub.start(["--backend", "local", "--device-model", small]);
  t.after(() => own.remove());
  const context = await browser.newContext();
  t.after(() => context.close());
  await takeWay(context, "tab");      // a context does not see the requests of a SharedWorker
  const page = await openChat(context, own);
  await loadSmall(page);
  const requests = [];
  context.on("request", (request) => requests.push(request));
  await set(page, { place: "device" });
  await ask(page, prompt);
  assert.equal((await lastAnswer(page)).facts.place, "device");
  assert.equal(await page.locator(".offer").count(), 0);
  assert.deepEqual(pathsOf(requests).filter((path) => path.startsWith("/v1/")), []);
  const bodies = requests.map((request) => request.postData() ?? "").join("");
  assert.ok(!bodies.includes(prompt), "no request has the words");

  await own.stop();
  await set(page, { place: "refine" });
  await page.locator("#banner").waitFor();
  assert.equal(await page.locator("#pool-text").textContent(), "this device; the hub is away");
  await page.locator("#new-chat").evaluate((node) => node.click());
  await ask(page, prompt);
  await offer(page, "The hub gave no better answer.");
  await settled(page);
  assert.equal(await place(page), "this device, small");
  assert.ok((await shown(page)).length > 0);
  assert.deepEqual(page.errors, []);
});
