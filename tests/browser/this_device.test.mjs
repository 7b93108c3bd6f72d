// "This device" in the chat page, in a real Chromium on the software adapter: the model is downloaded from the hub
// once. Then the page answers by itself, even without a hub. Its words are those of a hub that, like the page, rounds
// its matrices to 8 bits.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { ask } from "./support/chat_page.mjs";
import {
  answerTo, chooseDevice, deviceSettled, few_tokens, greedy, lastAnswer, max_tokens, openChat, prompt, set,
} from "./support/device_page.mjs";
import { Hub, chat } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

test("a first load asks for consent, gives the hub's words, and works offline", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--hub-dtype", "int8"]);
  t.after(() => hub.remove());
  const expected = await greedy(hub, prompt);
  const other = "What is in the box?";
  const expected_other = await greedy(hub, other);
  assert.equal(expected.error, null);

  const page = await openChat(await browser.newContext(), hub);
  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await page.locator("#device-load").waitFor();
  assert.match(await page.locator("#device-load").textContent(), /^Load \d+ MB$/);
  assert.match(await page.locator("#device-words").textContent(), /^The model takes \d+ MB\./);
  assert.ok(!asked.some((path) => path.startsWith("/api/package/")), "nothing is loaded before consent");

  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /^Ready/);
  await page.locator("#close-settings").click();
  await set(page, { max_tokens: String(max_tokens), temperature: "0" });
  const first = await answerTo(page, prompt);
  assert.equal(first.content, expected.text);
  assert.equal(first.facts.place, "device");
  assert.equal(first.facts.tokens, max_tokens);
  assert.equal(await page.locator(".facts .place").last().textContent(), "this device");
  assert.ok(!asked.includes("/v1/chat/completions"), "the hub was not asked");

  // An answer of the hub shows another place of computation.
  await set(page, { place: "hub" });
  assert.equal((await answerTo(page, other)).facts.place, "hub");
  assert.equal(await page.locator(".facts .place").last().textContent(), "hub");

  // Stored files are loaded without asking the user again.
  await page.locator("#open-settings").click();
  const fetched_before = asked.filter((path) => path.startsWith("/api/package/")).length;
  await page.locator("#place").selectOption("device");
  assert.match(await deviceSettled(page), /^Ready/);
  await page.locator("#close-settings").click();
  assert.equal(asked.filter((path) => path.startsWith("/api/package/")).length, fetched_before);

  await hub.stop();
  const alone = await answerTo(page, other);
  assert.equal(alone.end.reason, "length");
  assert.equal(alone.content, expected_other.text);
  assert.deepEqual(page.errors, []);
});

// Three kinds of settings, by their names: they draw tokens from the likeliest tokens or from all logits, with
// penalties and biases.
const kinds = [
  { temperature: 1, top_p: 0.9, top_k: 20, seed: 11 },
  { temperature: 0.9, top_p: 0.8, top_k: 0, min_p: 0.02, seed: 12 },
  {
    temperature: 0.7, top_p: 1, top_k: 5, repetition_penalty: 1.3, presence_penalty: 0.5, frequency_penalty: 0.5,
    seed: 13, logit_bias: [[" garden", false], [" sea", 3]],
  },
];
// Returns the contents of all settings fields; a setting that `kind` does not name is empty.
const fieldsOf = (kind) => Object.fromEntries(
  ["temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias"].map((name) => [name, kind[name] === undefined ? "" : typeof kind[name] === "number"
    ? String(kind[name]) : JSON.stringify(kind[name])]));

test("sampling settings give the hub's words, and a form is refused", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
  t.after(() => hub.remove());
  const page = await openChat(await browser.newContext(), hub);
  await chooseDevice(page);
  const texts = [];
  for (const kind of kinds) {
    const messages = [{ role: "user", content: prompt }];
    const expected = await chat(hub, { model: "moex-demo", messages, max_tokens, ...kind });
    assert.equal(expected.error, null);
    await set(page, { ...fieldsOf(kind), max_tokens: String(max_tokens) });
    const answer = await answerTo(page, prompt);
    assert.equal(answer.facts.place, "device");
    assert.equal(answer.content, expected.text, JSON.stringify(kind));
    texts.push(answer.content);
  }
  assert.equal(new Set(texts).size, kinds.length, "the settings make a difference");

  // Without a seed in the settings, each answer draws a new random seed.
  const wild = { ...kinds[0], temperature: 2, top_k: 60, seed: undefined };
  await set(page, { ...fieldsOf(wild), max_tokens: String(few_tokens) });
  assert.notEqual((await answerTo(page, prompt)).content, (await answerTo(page, prompt)).content);

  await set(page, { grammar: 'root ::= "yes"' });
  await page.locator("#open-settings").click();
  await page.locator("details", { has: page.locator("#grammar") }).evaluate((node) => { node.open = true; });
  assert.equal(await page.locator("#device-form-hint").isVisible(), true);
  await page.locator("#close-settings").click();
  const refused = await answerTo(page, prompt);
  assert.equal(refused.end.reason, "failed");
  assert.match(refused.end.words, /plain text only/);
  assert.deepEqual(page.errors, []);
});

test("cancel, stop words, and a continuation", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--hub-dtype", "int8"]);
  t.after(() => hub.remove());
  const { text } = await greedy(hub, prompt);
  const page = await openChat(await browser.newContext(), hub);
  await chooseDevice(page);

  await ask(page, prompt);
  await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent.length > 10);
  await page.locator("#stop").click();
  const stopped = await lastAnswer(page);
  assert.equal(stopped.end.reason, "stopped");
  assert.ok(text.startsWith(stopped.content.slice(0, text.length)), "what came is the hub's beginning");

  const stop = text.slice(20, 26);
  await set(page, { max_tokens: String(max_tokens), stop_words: stop });
  const ended = await answerTo(page, prompt);
  assert.equal(ended.end.reason, "stop");
  assert.equal(ended.content, text.slice(0, text.indexOf(stop)));

  await set(page, { max_tokens: "8", stop_words: "" });
  const begun = await answerTo(page, prompt);
  assert.equal(begun.end.reason, "length");
  await set(page, { max_tokens: String(max_tokens - 8) });
  await page.locator(".ended .button").last().click();
  await page.waitForFunction((before) => (
    document.querySelector(".message.assistant .body").textContent.length > before), begun.content.length);
  assert.equal((await lastAnswer(page)).content, text);
  assert.deepEqual(page.errors, []);
});

test("a GPU lost during an answer gives the same words", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--hub-dtype", "int8"]);
  t.after(() => hub.remove());
  const page = await openChat(await browser.newContext(), hub);
  await chooseDevice(page);
  await set(page, { max_tokens: String(max_tokens), ...fieldsOf(kinds[0]) });
  const { content: text } = await answerTo(page, prompt);
  await page.locator("#new-chat").evaluate((node) => node.click());
  await ask(page, prompt);
  await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent.length > 10);

  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  process.kill(processInfo.find(({ type }) => type === "GPU").id, "SIGKILL");
  const answer = await lastAnswer(page);
  assert.equal(answer.end.words, "");
  assert.equal(answer.content, text);
  assert.deepEqual(page.errors, []);
});
