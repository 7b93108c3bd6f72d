// "This device" answers with a model whose layers mostly have a recurrent state (a tiny Qwen3.5), on the software
// adapter and on the processor: a next turn, drafts that are rolled back, an edit of an early message, and a reload
// with kept pages give the words of a conversation that is computed as a whole. Of recurrent states few are kept.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { packFamily } from "../api/family_package.mjs";
import { answered, chooseDevice, deviceSettled, lastAnswer, openChat, set } from "./support/device_page.mjs";
import { Hub, build, run } from "./support/hub.mjs";
import { keptBytes, keptOf, wholePages } from "./support/kept_pages.mjs";
import { launch } from "./support/tab.mjs";

const page_tokens = 128;
const long = "red fox, blue whale, green frog, grey owl; ".repeat(8);
const questions = [long, "red fox, blue whale?", "green frog, grey owl?"];

let folder, hub;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "moex-hybrid-"));
  const { model } = await packFamily(folder, "qwen35-moe", (args) => run(join(build, "moex-hub"), args));
  hub = await Hub.start(["--backend", "local", "--model", model]);
});
after(async () => {
  await hub?.remove();
  rmSync(folder, { recursive: true, force: true });
});

// Opens a page that asks this device, with the number of drafted tokens in `globalThis.drafts`, at first `drafts`.
async function open(t, browser, drafts = "auto") {
  const context = await browser.newContext();
  t.after(() => context.close());
  await context.addInitScript((num) => {
    globalThis.drafts = num;
    const { postMessage } = MessagePort.prototype;
    MessagePort.prototype.postMessage = function post(message, ...others) {
      if (message?.type === "GET_TOKEN") message.payload.body.moex = { speculative: globalThis.drafts };
      return postMessage.call(this, message, ...others);
    };
  }, drafts);
  const page = await openChat(context, hub);
  await chooseDevice(page);
  await set(page, { max_tokens: "24" });
  return page;
}

// Asks, and returns the answer: its words, the tokens that were known, and all tokens of its prompt.
async function turn(page, words) {
  const { content, reasoning, facts, end } = await answered(page, words);
  assert.equal(facts.place, "device", end?.words);
  assert.notEqual(end?.reason, "failed", end?.words);
  return { text: `${reasoning ?? ""}|${content}`, known: facts.cached_tokens, prompt: facts.prompt_tokens, facts };
}
async function conversation(page, asked) {
  await page.locator("#new-chat").evaluate((node) => node.click());
  const turns = [];
  for (const words of asked) turns.push(await turn(page, words));
  return turns;
}
const textsOf = (turns) => turns.map(({ text }) => text);

async function edit(page, words) {
  const question = page.locator(".message").first();
  await question.hover();
  await question.getByRole("button", { name: "Edit" }).click();
  await page.keyboard.press("Control+A");
  await page.keyboard.insertText(words);
  await page.keyboard.press("Enter");
  const { content, reasoning, facts } = await lastAnswer(page);
  return { text: `${reasoning ?? ""}|${content}`, known: facts.cached_tokens, prompt: facts.prompt_tokens };
}

const remembers = (page) => page.waitForFunction(() => (
  /remembers conv/.test(document.getElementById("remember-words").textContent)));
// Resolves when that many pages and states are on the disk.
async function written(page, pages_min, states_min) {
  const has = async (is_state, least) => (await page.evaluate(wholePages, is_state)).length >= least;
  while (!await has(false, pages_min) || !await has(true, states_min))
    await new Promise((go) => { setTimeout(go, 50); });
}
// Resolves to the bytes of the files of pages and of states, when the newest text is whole on the disk: nothing is
// written for half a second.
async function settledBytes(page) {
  for (let before = "";;) {
    const found = await page.evaluate(keptBytes), now = JSON.stringify(found);
    if (now === before && found.num_states > 0) return found;
    before = now;
    await new Promise((go) => { setTimeout(go, 500); });
  }
}

for (const webgpu of [true, false])
  test(`a hybrid answers on this device's ${webgpu ? "GPU" : "processor"}`, async (t) => {
    const browser = await launch([], { webgpu });
    t.after(() => browser.close());
    const page = await open(t, browser);
    await page.evaluate(() => { globalThis.drafts = "off"; });
    const plain = await conversation(page, questions);
    assert.equal(plain[0].known, 0);
    assert.ok(plain[1].known >= page_tokens, `${plain[1].known} of ${plain[1].prompt} tokens were known`);

    // Drafts are rolled back, and no word changes.
    await page.evaluate(() => { globalThis.drafts = 7; });
    const drafted = await conversation(page, questions);
    assert.deepEqual(textsOf(drafted), textsOf(plain));
    const steps = drafted.map(({ facts }) => facts.tokens_per_step ?? 0);
    t.diagnostic(`tokens a step: ${steps.map((one) => one.toFixed(2)).join(" ")}`);
    assert.ok(Math.max(...steps) > 0, "nothing was drafted");

    // An edit in the first page's end goes on from the state before it.
    const edited = `${long.slice(0, -20)} and an otter?`;
    const after_edit = await edit(page, edited);
    t.diagnostic(`after an edit: ${after_edit.known} of ${after_edit.prompt} tokens were known`);
    assert.ok(after_edit.known >= page_tokens && after_edit.known % page_tokens === 0, `${after_edit.known} tokens`);
    const [anew] = await conversation(page, [edited]);
    assert.equal(after_edit.text, anew.text);

    // Pages are kept, and few states.
    await page.locator("#remember-yes").evaluate((node) => node.click());
    await remembers(page);
    const [first] = await conversation(page, questions.slice(0, 1));
    assert.equal(first.text, plain[0].text);
    await written(page, 2, 1);
    await page.goto("about:blank");
    await page.goBack();
    assert.match(await deviceSettled(page), /^Ready/);
    await remembers(page);
    // Another text takes the place of the conversation. Its pages then come from the files.
    const address = page.url();
    await conversation(page, ["Who are you?"]);
    await page.goto(address);
    await deviceSettled(page);
    const second = await turn(page, questions[1]);
    assert.equal(second.text, plain[1].text);
    t.diagnostic(`after a reload: ${second.known} of ${second.prompt} tokens were known`);
    assert.ok(second.known >= page_tokens, `${second.known} of ${second.prompt} tokens were known`);
    assert.ok((await page.evaluate(keptOf)).has_folder);
    assert.deepEqual(page.errors, []);
  });

// Two conversations with one system prompt, both of which are kept: what a reload computes again, of a next turn, of an
// edit of the first message, and of a third conversation.
for (const webgpu of [true, false])
  test(`few states of a hybrid on the ${webgpu ? "GPU" : "processor"} bring its conversations back`, async (t) => {
    const browser = await launch([], { webgpu });
    t.after(() => browser.close());
    // Rows of drafts may be in the journal, so that the end of an answer has no state.
    const page = await open(t, browser, "off");
    await set(page, { system: long });
    await page.locator("#remember-yes").evaluate((node) => node.click());
    await remembers(page);
    const others = ["Is the owl grey?", "And the frog?"];
    const one = await conversation(page, questions.slice(1));
    const address_one = page.url();
    const kept_one = await settledBytes(page);
    const two = await conversation(page, others);
    const address_two = page.url();
    const shared = two[0].known;
    assert.ok(shared >= page_tokens && shared % page_tokens === 0, `${shared} tokens of the system prompt were known`);
    const kept = await settledBytes(page);
    const [{ bytes: pages, num_pages }, { state_bytes, num_states }] = [kept_one, kept];
    t.diagnostic(`${one[1].prompt} tokens: ${num_pages} pages of ${pages} bytes, ${kept_one.num_states} states of `
      + `${kept_one.state_bytes}; with the second one ${num_states} of ${state_bytes}`);
    assert.ok(kept_one.num_states <= 4 && num_states <= 7, JSON.stringify([kept_one, kept]));

    // After a reload each conversation goes on from as many tokens as where it is in memory.
    const wanted = [];
    for (const [asked, next] of [[questions.slice(1), "Who?"], [others, "What?"]]) {
      wanted.push((await conversation(page, [...asked, next])).at(-1));
    }
    for (const [i, address, next] of [[0, address_one, "Who?"], [1, address_two, "What?"]]) {
      await page.goto("about:blank");
      await page.goto(address);
      assert.match(await deviceSettled(page), /^Ready/);
      await remembers(page);
      const { text, known, prompt } = await turn(page, next);
      t.diagnostic(`conversation ${i + 1} after a reload: ${known} of ${prompt} tokens were known`);
      assert.equal(text, wanted[i].text);
      assert.ok(known >= wanted[i].known, `${known} tokens, in memory ${wanted[i].known}`);
    }

    // An edit of the first message goes on behind the system prompt.
    await page.goto("about:blank");
    await page.goto(address_one);
    await deviceSettled(page);
    await remembers(page);
    const edited = await edit(page, "A yellow bird?");
    assert.equal(edited.known, shared, "the state of the system prompt");
    const [third] = await conversation(page, ["A yellow bird?"]);
    assert.equal(third.text, edited.text);
    assert.deepEqual(page.errors, []);
  });
