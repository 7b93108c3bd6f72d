// "This device" drafts n-grams of a conversation's own text, in a real Chromium on the software adapter. Drafts change
// how many steps an answer takes, and none of its words.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { answerTo, chooseDevice, openChat, set } from "./support/device_page.mjs";
import { startSmallHub } from "./support/small_model.mjs";
import { launch } from "./support/tab.mjs";

const max_tokens = 48;
const repeating = "red fox, blue whale, green frog, grey owl; ".repeat(4);

let browser, hub;
before(async () => { [browser, hub] = await Promise.all([launch(), startSmallHub()]); });
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// Opens a page whose questions to the model ask for a number of drafted tokens (moex.speculative): `wish.drafts`.
async function openDrafting(t) {
  const context = await browser.newContext();
  t.after(() => context.close());
  await context.addInitScript(() => {
    globalThis.wish = { drafts: "auto" };
    const { postMessage } = MessagePort.prototype;
    MessagePort.prototype.postMessage = function post(message, ...others) {
      if (message?.type === "GET_TOKEN") message.payload.body.moex = { speculative: globalThis.wish.drafts };
      return postMessage.call(this, message, ...others);
    };
  });
  const page = await openChat(context, hub);
  await chooseDevice(page);
  const answer = async (drafts) => {
    await page.evaluate((wanted) => { globalThis.wish.drafts = wanted; }, drafts);
    return answerTo(page, repeating);
  };
  return { page, answer };
}

// Greedy steps are issued ahead; the others draw from the likeliest tokens, and from all logits.
const kinds = [
  { temperature: 0 },
  { temperature: 0.3, top_k: 20, seed: 11 },
  { temperature: 0.3, top_k: 0, top_p: 0.9, repetition_penalty: 1.05, seed: 12 },
];

test("an answer with drafts has the words of one without, in fewer steps", async (t) => {
  const { page, answer } = await openDrafting(t);
  let most = 0;
  for (const kind of kinds) {
    const fields = Object.fromEntries(["temperature", "top_p", "top_k", "seed", "repetition_penalty"]
      .map((name) => [name, String(kind[name] ?? "")]));
    await set(page, { ...fields, max_tokens: String(max_tokens) });
    const plain = await answer("off");
    assert.equal(plain.facts.place, "device");
    assert.equal(plain.facts.tokens_per_step ?? null, null, "no drafts were asked for");
    const drafted = await answer(7);
    assert.equal(drafted.content, plain.content, JSON.stringify(kind));
    assert.equal(drafted.facts.tokens, plain.facts.tokens);
    assert.ok(drafted.facts.tokens_per_step >= 1, `${drafted.facts.tokens_per_step} tokens a step`);
    most = Math.max(most, drafted.facts.tokens_per_step);
    assert.equal((await answer("auto")).content, plain.content, JSON.stringify(kind));
  }
  t.diagnostic(`at most ${most.toFixed(2)} tokens a step`);
  assert.ok(most > 1.5, `${most} tokens a step`);
  assert.deepEqual(page.errors, []);
});

test("the page says how many tokens a step had", async (t) => {
  const { page, answer } = await openDrafting(t);
  await set(page, { temperature: "0", max_tokens: String(max_tokens) });
  const { facts } = await answer(7);
  assert.ok(facts.tokens_per_step > 1.5, `${facts.tokens_per_step} tokens a step`);
  assert.match(await page.locator(".facts").last().textContent(),
    new RegExp(`${facts.tokens_per_step.toFixed(1).replace(".", "\\.")} tokens a step`));
});
