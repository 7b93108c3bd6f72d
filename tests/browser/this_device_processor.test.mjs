// "This device" in a Chromium that finds no GPU: the page says that the processor computes, and answers with the words
// of a hub with its default settings, also without the hub, in both ways to compute, and after a reload. Pictures of it
// are in the build folder (pictures/).
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask } from "./support/chat_page.mjs";
import {
  answerTo, chooseDevice, deviceOf, deviceSettled, few_tokens, force, greedy, lastAnswer, max_tokens, openChat,
  openForced, prompt, set, takeWay,
} from "./support/device_page.mjs";
import { Hub, build, chat } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

let browser, hub;
before(async () => {
  [hub, browser] = await Promise.all([Hub.start(["--backend", "local"]), launch([], { webgpu: false })]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

async function open(t, { way = "shared", ...options } = {}) {
  const context = await browser.newContext(options);
  t.after(() => context.close());
  await takeWay(context, way);
  return openChat(context, hub);
}
async function picture(page, name) {
  mkdirSync(join(build, "pictures"), { recursive: true });
  await page.screenshot({ path: join(build, "pictures", `processor-${name}.png`) });
}

test("a first load asks for consent, names the processor, and gives the hub's words", async (t) => {
  const page = await open(t, { way: "tab" });
  const asked = [];
  page.context().on("request", (request) => asked.push(new URL(request.url()).pathname));
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await page.locator("#device-load").waitFor();
  assert.match(await page.locator("#device-words").textContent(),
    /^The model takes \d+ MB\. .* This browser finds no GPU: .* processor, which is slower\.$/);
  assert.ok(!asked.some((path) => path.startsWith("/api/package/")), "nothing is loaded before consent");
  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page),
    /^Ready: answers are computed on this device's processor, about [\d.]+ tokens a second\.$/);
  assert.equal((await deviceOf(page)).way, "tab");
  await picture(page, "settings");
  await page.locator("#close-settings").click();
  assert.equal(await page.locator("#pool-text").textContent(), "this device's processor");

  await set(page, { max_tokens: String(max_tokens), temperature: "0" });
  const expected = await greedy(hub, prompt);
  const answer = await answerTo(page, prompt);
  assert.equal(answer.content, expected.text);
  assert.deepEqual([answer.facts.place, answer.facts.tokens], ["device", max_tokens]);
  t.diagnostic(`${answer.facts.tokens_per_s.toFixed(1)} tokens/s`);
  // The service worker keeps the page, too, and no program that this browser does not need.
  const programs = new Set(asked.filter((path) => path.endsWith(".wasm")));
  assert.deepEqual([...programs], ["/wasm/moex-processor.wasm"]);
  assert.ok(!asked.includes("/v1/chat/completions"), "the hub was not asked");
  assert.deepEqual(page.errors, []);
});

test("sampling settings, drafts, stop and a next turn work as on a GPU", async (t) => {
  const page = await open(t);
  await chooseDevice(page);
  assert.equal((await deviceOf(page)).way, "shared");
  const kind = { temperature: 0.9, top_p: 0.8, min_p: 0.02, repetition_penalty: 1.2, seed: 12 };
  const messages = [{ role: "user", content: prompt }];
  const expected = await chat(hub, { model: "moex-demo", messages, max_tokens, ...kind });
  await set(page, { ...Object.fromEntries(Object.entries(kind).map(([name, value]) => [name, String(value)])),
    max_tokens: String(max_tokens) });
  assert.equal((await answerTo(page, prompt)).content, expected.text);

  // The next turn computes its own tokens only.
  await ask(page, "And then?");
  const next = await lastAnswer(page);
  assert.equal(next.facts.place, "device");
  assert.ok(next.facts.cached_tokens > max_tokens + 12, JSON.stringify(next.facts));

  await set(page, { max_tokens: "", temperature: "0", repetition_penalty: "", seed: "", min_p: "", top_p: "" });
  const { text } = await greedy(hub, prompt, 200);
  await page.locator("#new-chat").evaluate((node) => node.click());
  await ask(page, prompt);
  await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent.length > 10);
  await page.locator("#stop").click();
  const stopped = await lastAnswer(page);
  assert.equal(stopped.end.reason, "stopped");
  assert.ok(text.startsWith(stopped.content.slice(0, text.length)), "what came is the hub's beginning");
  assert.deepEqual(page.errors, []);
});

test("after a reload the conversation goes on from its kept pages, without the hub", async (t) => {
  const own = await Hub.start(["--backend", "local"]);
  t.after(() => own.remove());
  const context = await browser.newContext();
  t.after(() => context.close());
  await takeWay(context, "tab");
  const page = await openChat(context, own);
  await chooseDevice(page);
  await set(page, { max_tokens: String(few_tokens) });
  await page.locator("#remember-yes").evaluate((node) => node.click());
  await page.waitForFunction(() => (
    document.getElementById("remember-words").textContent.includes("remembers conversations: ")));
  const long = "The gardener counted the apples, and the apples were red. ".repeat(14);
  await answerTo(page, long);
  // The page says of how many conversations something is kept, when it is written.
  await page.waitForFunction(() => /1 conversation/.test(document.getElementById("remember-words").textContent));
  await page.waitForFunction(() => !document.getElementById("device-kept").hidden);
  await own.stop();
  await page.reload();
  await page.locator("#pool-text", { hasText: "this device's processor" }).waitFor();
  await ask(page, "And then?");
  await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 2);
  const next = await lastAnswer(page);
  assert.equal(next.facts.place, "device", next.end?.words);
  assert.ok(next.facts.cached_tokens >= 128, JSON.stringify(next.facts));
  assert.deepEqual(page.errors, []);
});

test("where it is faster, the hub answers until its speed is known", async (t) => {
  const page = await open(t, { way: "tab" });
  await chooseDevice(page);
  await set(page, { place: "either", max_tokens: String(few_tokens) });
  assert.equal((await answerTo(page, prompt)).facts.place, "hub");
  assert.deepEqual(page.errors, []);
});

test("the hub reads a long question, and the processor answers from the hub's pages", async (t) => {
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await openForced(context, hub);
  await chooseDevice(page);
  await set(page, { place: "either", max_tokens: String(max_tokens) });
  const long = `${"The old lighthouse keeper walked along the garden wall and looked at the sea. ".repeat(24)}
What did he see?`;
  const expected = await greedy(hub, long);
  await force(page, "handed");
  const answer = await answerTo(page, long);
  assert.equal(answer.facts.place, "handed");
  assert.ok(answer.facts.cached_tokens >= 256, JSON.stringify(answer.facts));
  assert.equal(answer.content, expected.text);

  // Back at the hub, this device sends what it holds.
  await force(page, "hub");
  await ask(page, "And then?");
  await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 2);
  assert.equal((await lastAnswer(page)).facts.place, "hub");
  assert.deepEqual(page.errors, []);
});

test("the page says it in German, in light and dark, and on a phone", async (t) => {
  const looks = [
    ["light", {}], ["dark", { colorScheme: "dark" }],
    ["phone", { viewport: { width: 390, height: 844 }, locale: "de-DE" }],
  ];
  for (const [name, options] of looks) {
    const page = await open(t, options);
    await page.locator("#open-settings").click();
    await page.locator("#place").selectOption("device");
    await page.locator("#device-load").click();
    const ready = name === "phone" ? /^Bereit: .* auf dem Prozessor dieses Geräts berechnet, etwa / : /^Ready: /;
    await page.waitForFunction((start) => new RegExp(start).test(document.getElementById("device-words").textContent),
      ready.source);
    await picture(page, `${name}-settings`);
    await page.locator("#close-settings").click();
    await picture(page, name);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= page.viewportSize().width, `${name}: ${width} pixels wide`);
    assert.deepEqual(page.errors, []);
  }
});
