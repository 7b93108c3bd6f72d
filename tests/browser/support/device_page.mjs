// "This device" in the chat page, for stories about it: the page and its settings, the model on the GPU, the answers.
import assert from "node:assert/strict";

import { ask, keptNow, settled } from "./chat_page.mjs";
import { chat } from "./hub.mjs";

export const prompt = process.env.MOEX_STORY_PROMPT ?? "Tell me a story about a garden.";
export const max_tokens = 24;
export const few_tokens = 8;      // answer length for tests that need only the first tokens

export async function openChat(context, hub) {
  context.setDefaultTimeout(0);      // only the time limit of the test ends a wait
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(String(error)));
  await page.goto(hub.url);
  await page.waitForFunction(() => document.getElementById("model").textContent !== "");
  return page;
}

// Opens a page that answers at the place `globalThis.forced_place`, if there is one. Without a real
// GPU the hub is always faster, so that the page itself would never choose a hand-off.
export async function openForced(context, hub) {
  await takeWay(context, "tab");      // a context does not see the requests of a SharedWorker
  await context.addInitScript(() => {
    const post = MessagePort.prototype.postMessage;
    MessagePort.prototype.postMessage = function posted(message, ...rest) {
      const wish = message.payload?.wish, place = globalThis.forced_place;
      if (wish && place) Object.assign(wish, { place, sends: "f16" });
      return post.call(this, message, ...rest);
    };
  });
  return openChat(context, hub);
}
export const force = (page, place) => page.evaluate((name) => { globalThis.forced_place = name; }, place);

export async function set(page, fields) {
  await page.locator("#open-settings").click();
  for (const [name, value] of Object.entries(fields)) {
    if (name === "place") await page.locator("#place").selectOption(value);
    else await page.locator(`#${name}`).evaluate((node, text) => {
      node.value = text;
      node.dispatchEvent(new Event("input"));
    }, value);
  }
  await page.locator("#close-settings").click();
}

// How the tabs of a context reach the one model (static/js/chat/model_link.js): "shared" where a SharedWorker computes,
// "tab" where a tab does, and "heard" where tabs have no SharedWorker to meet. Call it before pages are opened.
export async function takeWay(context, way) {
  if (way === "tab") {
    await context.addInitScript(() => {
      const Known = globalThis.SharedWorker;
      // This browser does not know the option `extendedLifetime`.
      globalThis.SharedWorker = function SharedWorker(url, { name, type }) { return new Known(url, { name, type }); };
    });
  } else if (way === "heard") await context.addInitScript(() => { delete globalThis.SharedWorker; });
}

// Returns {home, way, gpu_bytes, ...} of the model that the page uses.
export const deviceOf = (page) => page.evaluate(() => globalThis.moexDevice);

// Waits until the model is on the GPU, or until the page says why the model cannot be loaded.
export async function deviceSettled(page) {
  await page.waitForFunction(() => {
    const words = document.getElementById("device-words");
    return words.className === "problem" || /^Ready/.test(words.textContent);
  });
  return page.locator("#device-words").textContent();
}

// Waits until the page asks for the download or reports a problem, and agrees to the download if the page asks.
export async function loadIfAsked(page) {
  await page.waitForFunction(() => (
    !document.getElementById("device-load").hidden || document.getElementById("device-words").className === "problem"));
  if (await page.locator("#device-load").isVisible()) await page.locator("#device-load").click();
}

// Chooses this device and loads the model. Resolves to what the open settings then say.
export async function tryDevice(page) {
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await page.locator("#device-load").click();
  return deviceSettled(page);
}

export async function chooseDevice(page) {
  const words = await tryDevice(page);
  await page.locator("#close-settings").click();
  assert.match(words, /^Ready/, words);
  await set(page, { temperature: "0" });
}

// Returns the stored answers, the newest last.
async function keptAnswers(page) {
  const { conversations } = await keptNow(page);
  return conversations.flatMap(({ messages }) => messages).filter(({ role }) => role === "assistant")
    .sort((a, b) => a.at - b.at);
}

// Returns the last answer in its stored form, when it is complete and one of more than `before`.
export async function lastAnswer(page, before = 0) {
  await settled(page);
  for (;;) {
    const kept = await keptAnswers(page);
    if (kept.length > before && kept.at(-1).end) return kept.at(-1);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// Asks, and returns the answer in its stored form. An answer that ends at once may end before it is stored.
export async function answered(page, words) {
  const { length } = await keptAnswers(page);
  await ask(page, words);
  return lastAnswer(page, length);
}

export async function answerTo(page, words) {
  await page.locator("#new-chat").evaluate((node) => node.click());
  return answered(page, words);
}

export const greedy = (hub, words, length = max_tokens) => chat(hub, {
  model: "moex-demo", messages: [{ role: "user", content: words }], temperature: 0, max_tokens: length,
});
