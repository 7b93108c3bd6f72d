// "This device" remembers conversations, after consent: pages of keys and values in the browser's files. After a
// reload, in another visit, and after a lost GPU, the next turn computes its new tokens only, with the same words. The
// model is a small one, since a software GPU takes minutes for each load of the demo's.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask, keptNow } from "./support/chat_page.mjs";
import { chooseDevice, deviceSettled, lastAnswer, openChat, set } from "./support/device_page.mjs";
import { filesWith, keptOf, spoil, wholePages } from "./support/kept_pages.mjs";
import { startSmallHub } from "./support/small_model.mjs";
import { launch, launchProfile } from "./support/tab.mjs";

const long = "Tell me a story about the zebrafish Quillington, who lived in a garden of glass beside the northern sea, "
  + "and who wrote a letter every evening to the keeper of the lighthouse. Nobody knew what was in the letters, since "
  + "the keeper burned each of them as soon as it was read. One day a boat came with a box of silver, a map of the "
  + "seven islands, and a child who could not speak but who drew all day long. The child drew the sea, the garden "
  + "and the lighthouse, and at last the letters themselves, as if they had never been burned at all.";
const questions = [long, "What did Quillington write next?", "And who answered the letters?", "How did it end?"];
const few = 6;

let browser, hub;
before(async () => {
  [hub, browser] = await Promise.all([startSmallHub({ layers: 2 }), launch()]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

async function turn(page, words) {
  const before = (await keptNow(page)).conversations.flatMap(({ messages }) => messages).length;
  await ask(page, words);
  while ((await keptNow(page)).conversations.flatMap(({ messages }) => messages).length < before + 2) {
    await new Promise((go) => { setTimeout(go, 50); });
  }
  const { content, facts, end } = await lastAnswer(page);
  assert.equal(facts.place, "device", end?.words);
  assert.notEqual(end?.reason, "failed", end?.words);
  return { content, computed: facts.prompt_tokens - facts.cached_tokens, known: facts.cached_tokens };
}
const newChat = (page) => page.locator("#new-chat").evaluate((node) => node.click());

// Returns the turns of the questions in a conversation of its own, which no reload interrupts.
async function turnsOf(page, num) {
  await newChat(page);
  const turns = [];
  for (const words of questions.slice(0, num)) turns.push(await turn(page, words));
  return turns;
}

const press = (page, button) => page.locator(button).evaluate((node) => node.click());
// Resolves when `pages_min` pages are on the disk, one of them not among `before`: a longer page of a text replaces the
// shorter one under another name.
async function written(page, pages_min, before = []) {
  await page.waitForFunction((words) => (
    document.getElementById("remember-words").textContent.includes(words)), "remembers conversations: ");
  for (let names = []; names.length < pages_min || names.every((name) => before.includes(name));) {
    await new Promise((go) => { setTimeout(go, 50); });
    names = await page.evaluate(wholePages);
  }
  await page.waitForFunction(() => !/: 0 /.test(document.getElementById("remember-words").textContent));
}
async function back(page) {
  assert.match(await deviceSettled(page), /^Ready/);
  await page.waitForFunction(() => /remembers conv/.test(document.getElementById("remember-words").textContent));
}

test("a conversation goes on after a visit elsewhere and a closed browser", async (t) => {
  const profile = mkdtempSync(join(tmpdir(), "moex-profile-"));
  t.after(() => rmSync(profile, { recursive: true, force: true }));
  let context = await launchProfile(profile);
  t.after(() => context.close());
  let page = await openChat(context, hub);
  await chooseDevice(page);
  await set(page, { max_tokens: String(few) });
  assert.match(await page.locator("#remember-words").textContent(), /^Shall this device remember conversations\?/);
  const plain = await turnsOf(page, 3);
  assert.equal(plain[0].known, 0);
  assert.ok(plain[1].known > 128, `the story needs a full page: ${plain[1].known}`);
  const before = await page.evaluate(keptOf);
  assert.equal(before.has_folder || before.databases.includes("moex-pages"), false, "nothing is kept before consent");

  await press(page, "#remember-yes");
  await back(page);
  const [first] = await turnsOf(page, 1);
  assert.equal(first.content, plain[0].content);
  await written(page, 2);
  await page.goto("about:blank");
  await page.goBack();
  await back(page);
  const pages = await page.evaluate(wholePages);
  assert.deepEqual(await turn(page, questions[1]), plain[1], "after a visit elsewhere");
  await written(page, 2, pages);
  const address = page.url();
  assert.deepEqual(page.errors, []);
  await context.close();

  const { tokens } = await (await fetch(`${hub.url}/tokenize`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ content: long }),
  })).json();
  const ids = Buffer.from(Uint32Array.from(tokens.slice(2, 8)).buffer);
  for (const place of ["File System", "IndexedDB"]) {
    assert.deepEqual(filesWith(join(profile, "Default", place), ["Quillington", "lighthouse", ids]), []);
  }

  context = await launchProfile(profile);
  context.setDefaultTimeout(0);
  page = await context.newPage();
  await page.goto(address);
  await back(page);
  assert.deepEqual(await turn(page, questions[2]), plain[2], "in another visit");
});

const isKept = async (page) => {
  const { has_folder, databases } = await page.evaluate(keptOf);
  return has_folder || databases.includes("moex-pages");
};
const gone = async (page) => {
  while (await isKept(page)) await new Promise((go) => { setTimeout(go, 50); });
};

test("altered files, a lost GPU, and the end of the consent", async (t) => {
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await openChat(context, hub);
  await chooseDevice(page);
  await set(page, { max_tokens: String(few) });
  await press(page, "#remember-no");
  assert.match(await page.locator("#remember-words").textContent(), /^This device does not remember/);
  const plain = await turnsOf(page, 2);
  assert.equal(await isKept(page), false);
  await press(page, "#remember-yes");
  await back(page);
  await turnsOf(page, 1);
  await written(page, 2);

  // With another text on the GPU the pages come from the files. Altered ones are refused, deleted and written again;
  // kept_pages.test.mjs alters every part of a file.
  for (const is_altered of [false, true]) {
    await newChat(page);
    await turn(page, "Who are you?");
    if (is_altered) await page.evaluate(spoil, 5000);
    const [{ content, known }] = await turnsOf(page, 1);
    assert.equal(content, plain[0].content);
    assert.equal(known < 128, is_altered, `${known} tokens were known`);
    await written(page, 2);
  }

  // The GPU may be lost before or after the last page is written.
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  process.kill(processInfo.find(({ type }) => type === "GPU").id, "SIGKILL");
  const again = await turn(page, questions[1]);
  assert.equal(again.content, plain[1].content, "after a lost GPU");
  assert.ok(again.known >= 128, `${again.known} tokens were known`);

  // Deleted conversations take their pages along; "no" and "forget everything" leave nothing.
  const { conversations } = await keptNow(page);
  for (let left = conversations.length; left > 0; left -= 1) {
    await page.locator("#conversations .conversation").first().hover();
    await page.locator("#conversations button[aria-label^='Delete']").first().evaluate((node) => node.click());
  }
  while ((await page.evaluate(keptOf)).files.length > 0) await new Promise((go) => { setTimeout(go, 50); });
  await turnsOf(page, 1);
  await written(page, 2);
  await press(page, "#remember-no");
  await gone(page);
  await turn(page, questions[1]);
  assert.equal(await isKept(page), false, "nothing is written after the end of the consent");
  await press(page, "#remember-yes");
  await back(page);
  await turnsOf(page, 1);
  await written(page, 2);
  await page.locator("#open-settings").click();
  await page.locator("#forget").click();
  await page.locator("#forget-yes").click();
  await page.locator("#toast").getByText("Everything").waitFor();
  assert.equal(await isKept(page), false);
  assert.deepEqual(page.errors, []);
});
