// "Where it is faster" in the chat page, in a real Chromium on the software adapter: the hub reads a long question and
// hands its keys and values to the model in the browser, which writes the answer; the page says before each word where
// it goes.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { answerTo, deviceSettled, greedy, max_tokens, openChat, set } from "./support/device_page.mjs";
import { Hub } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

const long_question = `${"The old lighthouse keeper walked along the garden wall and looked at the sea. ".repeat(30)}
What did he see?`;

// Opens a page that answers at the place `globalThis.forced_place`, if there is one. On a software GPU the hub is
// always faster, so that the page itself would never choose a hand-off.
async function openForced(context, hub) {
  await context.addInitScript(() => {
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function posted(message, ...rest) {
      if (message.wish && globalThis.forced_place) message.wish.place = globalThis.forced_place;
      return post.call(this, message, ...rest);
    };
  });
  return openChat(context, hub);
}
const force = (page, place) => page.evaluate((name) => { globalThis.forced_place = name; }, place);

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
  assert.equal(await pill(), "the hub; this device is not ready", "before the model is here, words go to the hub");
  const early = await answerTo(page, "Tell me of a garden.");
  assert.equal(early.facts.place, "hub");

  await page.locator("#open-settings").click();
  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /^Ready/);
  await page.locator("#close-settings").click();
  assert.equal(await pill(), "this device or the hub");
  assert.match(await page.locator("#welcome-words").textContent(), /What you write may go to the hub/);

  // By itself the page leaves the answer to the hub, which it knows to be faster once this device has answered.
  await answerTo(page, "Tell me of a tree.");
  assert.equal((await answerTo(page, "Tell me of a house.")).facts.place, "hub");

  asked.length = 0;
  await force(page, "handed");
  const answer = await answerTo(page, long_question);
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
  assert.equal(await pill(), "this device; the hub is away");
  assert.match(await page.locator("#banner").textContent(), /this device answers alone/);
  const away = await answerTo(page, "Tell me of the sea.");
  assert.equal(away.facts.place, "device");
  assert.deepEqual(page.errors, []);
});
