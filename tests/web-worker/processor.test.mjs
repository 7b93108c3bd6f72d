// "This device" without WebGPU: the hub's own decoder as WASM with SIMD128, on the demo model. Node runs it here, with
// Chromium's engine; tests/browser/this_device_processor.test.mjs has the page around it.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { packFamily } from "../api/family_package.mjs";
import { ProcessorModel } from "./browser/load_processor.mjs";
import { packWide } from "./browser/wide_package.mjs";

const folder = "static/models/demo";
const question = "Tell me a story about a garden.";
const asked = (content, more = {}) => ({
  messages: [{ role: "user", content }], temperature: 0, max_tokens: 48, ...more,
});
const long = "The gardener counted the apples, and the apples were red. ".repeat(12);

// The words of `moex-hub generate`, which computes as `serve` does by default.
function wordsOfHub(content, ...more) {
  const program = join(process.env.MOEX_BUILD ?? "build", "moex-hub");
  const args = ["generate", "--chat", "--prompt", content, "--max-tokens", "48", ...more];
  return execFileSync(program, args, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).replace(/\n$/, "");
}

let model;
before(async () => {
  model = await ProcessorModel.load(folder);
  const { ready } = await model.open();
  assert.ok(ready.processor.answer_tokens_per_s > 0 && ready.processor.prompt_tokens_per_s > 0);
  assert.deepEqual([ready.context_tokens, ready.processor.is_short], [1024, false]);
});
after(() => model.close());

test("greedy and sampled answers have the hub's words", async (t) => {
  const greedy = await model.answer(asked(question));
  assert.equal(greedy.text, wordsOfHub(question, "--temperature", "0"));
  assert.equal(greedy.completion_tokens, 48);
  t.diagnostic(`${greedy.prompt_tokens_per_s.toFixed(1)} tokens/s read, ${greedy.tokens_per_s.toFixed(1)} written`);
  const sampled = await model.answer(asked(question, { temperature: 0.8, top_p: 0.9, seed: 11 }));
  assert.equal(sampled.text, wordsOfHub(question, "--temperature", "0.8", "--top-p", "0.9", "--seed", "11"));
  assert.notEqual(sampled.text, greedy.text);
});

// Dense layers, biases, windows, shared experts, MXFP4, recurrent states: what the demo model has not.
test("other families have the hub's words", async (t) => {
  const scratch = mkdtempSync(join(tmpdir(), "moex-wide-"));
  t.after(() => rmSync(scratch, { recursive: true }));
  for (const name of ["dense/qwen2", "dense/llama", "families/gpt-oss-mxfp4", "families/glm4-moe",
    "families/qwen2-moe", "families/qwen3-next"]) {
    const wide = packWide(name, scratch);
    const other = await ProcessorModel.load(wide);
    t.after(() => other.close());
    assert.ok((await other.open()).ready, name);
    const { text } = await other.answer(asked(question));
    assert.equal(text, wordsOfHub(question, "--temperature", "0", "--model", wide), name);
    assert.ok(text.length > 0, name);
  }
});

test("drafted tokens change no word, and save steps", async () => {
  const plain = await model.answer(asked(long, { moex: { speculative: "off" } }));
  const drafted = await model.answer(asked(long, { moex: { speculative: 7 } }));
  assert.equal(drafted.text, plain.text);
  assert.equal(plain.speculative, null);
  assert.ok(drafted.speculative.tokens_per_step > 1.2, JSON.stringify(drafted.speculative));
  assert.equal(drafted.cached_tokens, drafted.prompt_tokens - 1, "the prompt is held");
});

test("a cancel between two steps of a prompt ends the answer, and loses nothing", async () => {
  await model.answer(asked("Tell me of the sea.", { max_tokens: 1 }));
  let turns = 0;
  model.onTurn = () => {
    turns += 1;
    if (turns === 2) model.cancel();
  };
  const cancelled = await model.answer(asked(long));
  model.onTurn = () => {};
  assert.deepEqual([cancelled.finish_reason, cancelled.text], ["cancelled", ""]);
  assert.ok(turns <= 3, `${turns} turns`);

  const whole = await model.answer(asked(long));
  assert.ok(whole.cached_tokens > 16 && whole.cached_tokens < whole.prompt_tokens - 1, `${whole.cached_tokens}`);
  assert.equal(whole.text, wordsOfHub(long, "--temperature", "0"));
});

test("pages of a text continue it in another program with the same words", async (t) => {
  const first = await model.answer(asked(long));
  const other = await ProcessorModel.load(folder);
  t.after(() => other.close());
  await other.open();
  other.given = await model.readPages();
  assert.ok(other.given.length >= 2);
  const again = await other.answer(asked(long));
  assert.equal(again.text, first.text);
  assert.equal(again.cached_tokens, again.prompt_tokens - 1);
  other.given[0].bytes[40] ^= 1;
  await other.answer(asked("Tell me of the sea.", { max_tokens: 1 }));
  const { cached_tokens } = await other.answer(asked(long, { max_tokens: 1 }));
  assert.ok(cached_tokens < 16, "a page of another model is refused");
});

// ---- recurrent states

const page_tokens = 128;
const system = { role: "system", content: "The owl is grey, the fox is red, the frog is green. ".repeat(8) };
const user = (content) => ({ role: "user", content });
const chat = (...messages) => ({ messages: [system, ...messages], temperature: 0, max_tokens: 24 });
const sum = (pages) => pages.reduce((bytes, one) => bytes + one.bytes.length, 0);

// A conversation, and what a reload, an edit of an early message and a second conversation compute again.
test("a hybrid leaves few recurrent states, and goes on from them", async (t) => {
  const scratch = mkdtempSync(join(tmpdir(), "moex-hybrid-"));
  t.after(() => rmSync(scratch, { recursive: true }));
  const hub = join(process.env.MOEX_BUILD ?? "build", "moex-hub");
  const { model: tiny } = await packFamily(scratch, "qwen35-moe", async (args) => {
    execFileSync(hub, args, { stdio: "ignore" });
    return { code: 0 };
  });
  const open = async () => {
    const made = await ProcessorModel.load(tiny);
    t.after(() => made.close());
    assert.ok((await made.open()).ready);
    return made;
  };
  const first = await open();
  const turns = [user(long)], answers = [];
  for (const next of ["And the apples of the frog?", "And those of the owl?", ""]) {
    answers.push(await first.answer(chat(...turns)));
    if (next) turns.push({ role: "assistant", content: answers.at(-1).text }, user(next));
  }
  const { tokens, states } = first.kept;
  const [shared] = states;
  assert.ok(shared >= page_tokens && states.length <= 3, `${states}`);
  assert.equal(states.at(-1), Math.floor(tokens.length / page_tokens) * page_tokens);
  const [pages, kept] = [await first.readPages(), await first.readStates()];
  assert.ok(kept.every(({ bytes }) => bytes.length > 0), "all of them are in memory");
  const whole = pages.slice(0, Math.floor(tokens.length / page_tokens));
  assert.equal(pages.at(-1).bytes.length, 0, "rows without a state behind them are of no use");
  t.diagnostic(`${tokens.length} tokens: ${sum(whole)} bytes of pages, ${sum(kept)} of ${kept.length} states; a state `
    + `for each page would be ${whole.length * kept[0].bytes.length}`);
  assert.ok(kept.every(({ bytes }) => bytes.length === kept[0].bytes.length));

  // The next turn, in this program and in another one that has the pages and the newest state.
  turns.push({ role: "assistant", content: answers.at(-1).text }, user("Who counted?"));
  const plain = await first.answer(chat(...turns));
  const other = await open();
  other.shelf = { tokens, pages, states: kept };
  const again = await other.answer(chat(...turns));
  assert.deepEqual([again.text, again.cached_tokens], [plain.text, plain.cached_tokens]);
  // The template leaves thoughts out of old answers, so that the text goes on behind the prompt.
  assert.equal(again.cached_tokens, states[1]);

  // An early message is edited: the state of the system prompt comes from the files.
  const edited = [user(`${long} And pears?`)];
  await first.answer({ ...chat(user("Hello.")), messages: [user("Hello.")] });
  const wanted = await first.answer(chat(...edited));
  assert.equal(wanted.cached_tokens, 0, "this program has no text with this beginning");
  const third = await open();
  third.shelf = { tokens, pages, states: kept };
  const from_files = await third.answer(chat(...edited));
  assert.deepEqual([from_files.text, from_files.cached_tokens], [wanted.text, shared]);

  // A second conversation with the same system prompt goes on from the state in memory.
  const second = await first.answer(chat(user("Where is the frog?")));
  assert.equal(second.cached_tokens, shared);
  const alone = await open();
  assert.equal((await alone.answer(chat(user("Where is the frog?")))).text, second.text);
});

test("a small memory shortens the context, and a smaller one refuses the model", async (t) => {
  const small = await ProcessorModel.load(folder);
  t.after(() => small.close());
  const { failed } = await small.open({ memory_bytes: 30e6 });
  assert.equal(failed.code, "no_space");
  const [, least] = /^it takes (\d+) MB of this browser's memory, which has room for 30 MB$/.exec(failed.message);
  const { ready } = await small.open({ memory_bytes: Number(least) * 1e6 });
  assert.deepEqual([ready.context_tokens, ready.processor.is_short], [512, true]);
  assert.equal((await small.answer(asked(question))).completion_tokens, 48);
});
