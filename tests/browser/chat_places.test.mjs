// The chat page before an answer is possible: a hub that asks for a key, and a hub that is away for a moment.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { answers, ask, settled } from "./support/chat_page.mjs";
import { openChat } from "./support/device_page.mjs";
import { Hub } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

const key = "moex-key-for-the-story";
let browser;
before(async () => { browser = await launch([], { webgpu: false }); });
after(async () => { await browser?.close(); });

async function open(t, hub) {
  const context = await browser.newContext();
  t.after(() => context.close());
  return openChat(context, hub);
}

test("a hub that asks for a key says so before the first question", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--require-key"], { env: { MOEX_API_KEY: key } });
  t.after(() => hub.remove());
  const page = await open(t, hub);
  await page.locator("#pool-text", { hasText: "API key needed" }).waitFor();
  await page.locator("#welcome-words", { hasText: "only with an API key" }).waitFor();

  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await ask(page, "Hello");
  assert.equal(await page.evaluate(() => document.activeElement.id), "api-key");
  assert.equal(await page.locator("#prompt").inputValue(), "Hello", "the question stays");
  assert.ok(!asked.includes("/v1/chat/completions"), "nothing was asked without a key");
  await page.locator("#close-settings").click();

  await page.getByRole("button", { name: "Enter the API key" }).click();
  await page.locator("#api-key").fill(key);
  await page.locator("#pool-text", { hasText: "hub only" }).waitFor();
  await page.locator("#close-settings").click();
  assert.equal(await page.locator("#ideas button").count(), 3);
  await page.locator("#prompt").press("Enter");
  await settled(page);
  await page.locator(".message.assistant .facts").waitFor();
  assert.notEqual((await answers(page))[0], "");
});

test("a question that failed while the hub was away is answered when it is back", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  const page = await open(t, hub);
  await hub.stop();
  await page.locator("#banner", { hasText: "does not answer" }).waitFor();
  await ask(page, "Hello");
  await page.locator(".message.assistant", { hasText: "cannot be reached" }).waitFor();
  const back = await Hub.start(hub.args, { state: hub.state, port: hub.port });
  t.after(() => back.remove());
  await page.locator(".message.assistant .facts", { hasText: "tokens/s" }).waitFor();
  assert.equal(await page.locator(".message.assistant").count(), 1);
  assert.deepEqual(page.errors, []);
});
