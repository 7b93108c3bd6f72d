// A long conversation of several turns on "this device", in a real Chromium: once with all of its keys and values in
// the GPU's memory, and once with a part of them there and the others in the browser's files.
//   node bench/long_chat_bench.mjs [--model DIR | --shape bench-moe] [--tokens 6000] [--turns 6] [--answer 24]
//     [--context 8192] [--shares 1,4] [--header]
// NAME as in `moex-hub synth`; such a package gets the demo's tokenizer. The turns together have about --tokens
// tokens; the page leaves turns out that were answered without a text.
// A share S: one of S pages of the context has room in the GPU's memory. 4 of 8,192 tokens is a third of 6,000.
// MOEX_BUILD: build folder; MOEX_NPM, MOEX_CHROMIUM, MOEX_CHROMIUM_ARGS as in tests/browser/support/tab.mjs. CSV, a row
// for each turn:
//   cached_tokens  tokens of the prompt that were not computed in this turn
//   ttft_ms, ms_token   time to the first token, and time per token after it
//   evicted_mb     size of the files of evicted pages after the turn
//   same           1 if the answer has the words of the first share's
// example: node bench/long_chat_bench.mjs --header
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub } = await import("../tests/browser/support/hub.mjs");
const { launch } = await import("../tests/browser/support/tab.mjs");
const { ask } = await import("../tests/browser/support/chat_page.mjs");
const { chooseDevice, deviceOf, lastAnswer, openChat, set, takeWay } =
  await import("../tests/browser/support/device_page.mjs");
const { synthChat } = await import("./synth_chat.mjs");

const columns = "model,share,turn,prompt_tokens,cached_tokens,answer_tokens,ttft_ms,ms_token,evicted_mb,same";
const options = {
  model: "", shape: "bench-moe", tokens: "6000", turns: "6", answer: "24", context: "8192", shares: "1,4",
};
const with_header = readFlags("long_chat_bench", options);
const num_turns = Number(options.turns);
const source = readFileSync("tests/golden/demo/val_excerpt.txt", "utf8").split(/\s+/).filter(Boolean);
const words_per_token = 0.68;      // of this text with the demo's tokenizer, roughly
const length = Math.round((Number(options.tokens) / num_turns - Number(options.answer)) * words_per_token);
const questions = Array.from({ length: num_turns }, (_, turn) => (
  Array.from({ length }, (_, i) => source[(turn * length + i) % source.length]).join(" ")));

const evictedBytes = (page) => page.evaluate(async () => {
  const root = await navigator.storage.getDirectory();
  const all = await root.getDirectoryHandle("moex-evicted", { create: true });
  let sum = 0;
  for await (const folder of all.values())
    for await (const file of folder.values()) sum += (await file.getFile()).size;
  return sum;
});

// Resolves to a row {facts, content, evicted_mb} for each turn of the conversation.
async function converse(browser, hub, share) {
  const context = await browser.newContext();
  await takeWay(context, "tab");      // the modules of a SharedWorker cannot be replaced
  const module = readFileSync("static/js/chat/device.js", "utf8");
  const [known_context, known_share] = ["context_tokens_max = 4096", "this.kv_share = 1;"];
  assert.ok(module.includes(known_context) && module.includes(known_share));
  const changed = module.replace(known_context, `context_tokens_max = ${options.context}`)
    .replace(known_share, `this.kv_share = ${share};`);
  await context.route("**/js/chat/device.js", (route) => route.fulfill({
    contentType: "text/javascript", body: changed,
  }));
  const page = await openChat(context, hub);
  await chooseDevice(page);
  const { context_tokens, is_paged } = await deviceOf(page);
  assert.deepEqual({ context_tokens, is_paged }, { context_tokens: Number(options.context), is_paged: share > 1 });
  await set(page, { max_tokens: options.answer });
  const rows = [];
  for (const question of questions) {
    await ask(page, question);
    const { facts, content } = await lastAnswer(page);
    rows.push({ facts, content, evicted_mb: await evictedBytes(page) / 1e6 });
  }
  assert.deepEqual(page.errors, []);
  await context.close();
  return rows;
}

const folder = mkdtempSync(join(tmpdir(), "moex-long-chat-"));
if (!options.model) {
  options.model = join(folder, options.shape);
  await synthChat(options.shape, options.model, ["--context", options.context]);
}
const hub = await Hub.start(["--backend", "local", "--model", options.model]);
const browser = await launch();
try {
  if (with_header) console.log(columns);
  let first = null;
  for (const share of options.shares.split(",").map(Number)) {
    const rows = await converse(browser, hub, share);
    first ??= rows;
    rows.forEach(({ facts, content, evicted_mb }, i) => console.log([
      basename(options.model), share, i + 1, facts.prompt_tokens, facts.cached_tokens,
      facts.tokens, Math.round(facts.ttft_ms),
      facts.tokens_per_s > 0 ? (1000 / facts.tokens_per_s).toFixed(2) : "", evicted_mb.toFixed(1),
      Number(content === first[i].content),
    ].join(",")));
  }
} finally {
  await browser.close();
  await hub.remove();
  rmSync(folder, { recursive: true, force: true });
}
