// "Where it is faster" in the chat page, in a real Chromium on the software adapter: the hub reads a long question and
// hands its keys and values to the model in the browser, which writes the answer; the page says before each word where
// it goes, which pictures in the build folder (pictures/) show. A conversation that this device has read moves to the
// hub with its keys and values.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask } from "./support/chat_page.mjs";
import {
  answerTo, deviceSettled, force, greedy, lastAnswer, max_tokens, openForced, set,
} from "./support/device_page.mjs";
import { Hub, build } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

const long_question = `${"The old lighthouse keeper walked along the garden wall and looked at the sea. ".repeat(30)}
What did he see?`;

// Takes a picture of the moment `name` and returns what the page says of the place where words go.
async function pictured(page, name) {
  mkdirSync(join(build, "pictures"), { recursive: true });
  await page.screenshot({ path: join(build, "pictures", `either-${name}.png`) });
  return page.locator("#pool-text").textContent();
}
test("the hub reads a long question, and this device answers with the hub's words", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
  t.after(() => hub.remove());
  const expected = await greedy(hub, long_question);
  assert.equal(expected.error, null);

  const page = await openForced(await browser.newContext(), hub);
  const asked = [];
  page.context().on("request", (request) => asked.push(new URL(request.url()).pathname));
  const pill = () => page.locator("#pool-text").textContent();
  await set(page, { place: "either", max_tokens: String(max_tokens), temperature: "0" });
  await page.waitForFunction(() => !document.getElementById("device-load").hidden);
  // Before the model is here, words go to the hub.
  assert.equal(await pictured(page, "missing"), "the hub; this device is not ready");
  const early = await answerTo(page, "Tell me of a garden.");
  assert.equal(early.facts.place, "hub");

  await page.locator("#open-settings").click();
  await page.locator("#device-load").click();
  await page.waitForFunction(() => document.getElementById("device-load").hidden);
  assert.equal(await pictured(page, "loading"), "the hub; this device loads");
  assert.match(await deviceSettled(page), /^Ready/);
  await page.locator("#close-settings").click();
  assert.equal(await pictured(page, "before"), "this device or the hub");
  assert.match(await page.locator("#welcome-words").textContent(), /What you write may go to the hub/);

  // By itself the page leaves the answer to the hub, which it knows to be faster once this device has answered.
  await answerTo(page, "Tell me of a tree.");
  assert.equal((await answerTo(page, "Tell me of a house.")).facts.place, "hub");

  asked.length = 0;
  await force(page, "handed");
  const answering = answerTo(page, long_question);
  assert.equal(await pictured(page, "during"), "this device or the hub");
  const answer = await answering;
  assert.equal(await pictured(page, "after"), "this device or the hub");
  assert.equal(answer.facts.place, "handed");
  assert.equal(answer.content, expected.text);
  assert.equal(await page.locator(".facts .place").last().textContent(), "hub and this device");
  assert.deepEqual(asked.filter((path) => path.startsWith("/v1/")), ["/v1/prefill"]);

  // On this device only, nothing leaves it, whatever a wish would say.
  await set(page, { place: "device" });
  await deviceSettled(page);
  assert.equal(await pill(), "this device");
  asked.length = 0;
  const alone = await answerTo(page, "Tell me of the sea.");
  assert.equal(alone.facts.place, "device");
  assert.deepEqual(asked.filter((path) => path.startsWith("/v1/")), []);

  // Without the hub, either place is this one.
  await force(page, "");
  await set(page, { place: "either" });
  await deviceSettled(page);
  await hub.stop();
  await page.waitForFunction(() => !document.getElementById("banner").hidden);
  assert.equal(await pictured(page, "away"), "this device; the hub is away");
  assert.match(await page.locator("#banner").textContent(), /this device answers alone/);
  const away = await answerTo(page, "Tell me of the sea.");
  assert.equal(away.facts.place, "device");
  assert.deepEqual(page.errors, []);
});

test("a conversation of this device moves to the hub, which computes its new tokens only", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
  t.after(() => hub.remove());
  const page = await openForced(await browser.newContext(), hub);
  const sent = [];
  page.context().on("request", (request) => {
    const { pathname } = new URL(request.url());
    if (pathname.startsWith("/v1/")) sent.push({ pathname, body: request.postData() ?? "" });
  });
  await set(page, { place: "either", max_tokens: String(max_tokens), temperature: "0" });
  await page.waitForFunction(() => !document.getElementById("device-load").hidden);
  await page.locator("#open-settings").click();
  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /^Ready/);
  assert.equal(await page.locator("#quality-field").isVisible(), false, "both places have one model");
  await page.locator("#close-settings").click();

  await force(page, "here");
  const first = await answerTo(page, long_question);
  assert.equal(first.facts.place, "device");
  assert.deepEqual(sent, [], "nothing has left this device");

  await force(page, "hub");
  await ask(page, "And what did he see then?");
  const second = await lastAnswer(page);
  assert.equal(second.facts.place, "hub");
  const [opened, taken, asked, ...others] = sent.map(({ pathname }) => pathname);
  assert.deepEqual([opened, others], ["/v1/pages", []]);
  assert.match(taken, /^\/v1\/pages\/[0-9a-f]{32}$/);
  assert.equal(asked, "/v1/chat/completions");
  const { moex, messages } = JSON.parse(sent[2].body);
  assert.equal(`/v1/pages/${moex.pages}`, taken);
  const { held, prompt } = JSON.parse(sent[0].body);
  assert.ok(held > 400 && prompt.length - held < 64, `${held} of ${prompt.length} tokens were sent`);

  // The hub's own words for the same conversation, which it reads from the first token.
  const askHub = async (extra) => (await fetch(`${hub.url}/v1/chat/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model: "moex-demo", messages, temperature: 0, max_tokens, ...extra }),
  })).json();
  const own = await askHub({});
  assert.ok(own.usage.prompt_tokens_details.cached_tokens < 64, "the pages reach no other request");
  assert.equal(second.content, own.choices[0].message.content);
  const moved = await askHub({ moex: { pages: moex.pages } });
  assert.ok(moved.usage.prompt_tokens_details.cached_tokens >= held, JSON.stringify(moved.usage));

  // A third turn sends nothing twice: the hub has what it took, and what it wrote.
  sent.length = 0;
  await ask(page, "And then?");
  assert.equal((await lastAnswer(page)).facts.place, "hub");
  assert.deepEqual(sent.map(({ pathname }) => pathname), ["/v1/pages", "/v1/chat/completions"]);

  // On this device only, nothing leaves it, whatever a wish would say.
  await set(page, { place: "device" });
  await deviceSettled(page);
  sent.length = 0;
  await ask(page, "And after that?");
  assert.equal((await lastAnswer(page)).facts.place, "device");
  assert.deepEqual(sent, []);
  assert.deepEqual(page.errors, []);
});
