// "This device" in the chat page over a reload, in a real Chromium: how soon the model is ready, and what the next turn
// of the conversation costs, beside the same turn without a reload and beside reading the model's files alone.
//   node bench/reload_bench.mjs [--model DIR | --layers N] [--ways shared,tab,tab+pages] [--tokens 8] [--header]
// Without --model it packs a small model of N layers with random weights (tests/browser/support/small_model.mjs). Ways:
// "shared" and "tab" as in static/js/chat/model_link.js; "+pages": the user lets the device remember conversations.
// MOEX_BUILD: build folder; MOEX_NPM, MOEX_CHROMIUM, MOEX_CHROMIUM_ARGS as in tests/browser/support/tab.mjs. CSV:
//   load_ms         from the user's consent to "ready", the download over loopback included
//   ready_ms        from the navigation of the reload to "ready"
//   files_ms        reading all bytes of the model's files through sync access handles, in pieces of 4 MiB
//   next_ms, next_tokens            time to the first token of the second turn, and prompt tokens computed for it
//   reloaded_ms, reloaded_tokens    the same for the same turn after a reload
// example: node bench/reload_bench.mjs --header
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub } = await import("../tests/browser/support/hub.mjs");
const { launch } = await import("../tests/browser/support/tab.mjs");
const { packSmall } = await import("../tests/browser/support/small_model.mjs");
const { ask, keptNow } = await import("../tests/browser/support/chat_page.mjs");
const {
  chooseDevice, deviceSettled, lastAnswer, openChat, set, takeWay,
} = await import("../tests/browser/support/device_page.mjs");

const columns = "model,way,model_mb,load_ms,ready_ms,files_ms,next_ms,next_tokens,reloaded_ms,reloaded_tokens";
const options = { model: "", layers: "8", ways: "shared,tab,tab+pages", tokens: "8" };
const with_header = readFlags("reload_bench", options);
const long = `${"Tell me of the old garden wall and the sea. ".repeat(20)}What is behind it?`;
const questions = [long, "Who lives there?"];

// Answers {files} with the time that reading them takes.
const reader = `
import { FileStore } from "./file_store.js";
onmessage = async ({ data: { files } }) => {
  const store = await FileStore.open();
  await store.openAll(files);
  const piece = new Uint8Array(4 << 20);
  const began = performance.now();
  for (const { sha256, bytes } of files) {
    for (let at = 0; at < bytes; at += piece.length) {
      store.read(sha256, at, piece.subarray(0, Math.min(piece.length, bytes - at)));
    }
  }
  postMessage(performance.now() - began);
  store.closeAll();
};`;
const readFiles = (page, files) => page.evaluate((list) => new Promise((resolve) => {
  const worker = new Worker("wasm/bench_reader.js", { type: "module" });
  worker.onmessage = ({ data }) => {
    worker.terminate();
    resolve(data);
  };
  worker.postMessage({ files: list });
}), files);

// Asks in the open conversation. Resolves to the facts of the answer, when it is kept.
async function turn(page, words) {
  const numKept = async () => (await keptNow(page)).conversations.flatMap(({ messages }) => messages).length;
  const before = await numKept();
  await ask(page, words);
  while (await numKept() < before + 2) await new Promise((go) => { setTimeout(go, 20); });
  const { facts } = await lastAnswer(page);
  return [Math.round(facts.ttft_ms), facts.prompt_tokens - facts.cached_tokens];
}
const newChat = (page) => page.locator("#new-chat").evaluate((node) => node.click());
const pagesKept = (page) => page.waitForFunction(() => {
  const words = document.getElementById("remember-words").textContent;
  return words.includes("remembers conversations: ") && !/: 0 /.test(words);
});

async function measure(browser, hub, files, way) {
  const [path, keeps] = way.split("+");
  const context = await browser.newContext();
  await takeWay(context, path);
  await context.route("**/wasm/bench_reader.js", (route) => route.fulfill({
    contentType: "text/javascript", body: reader,
    headers: { "Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "same-origin" },
  }));
  const page = await openChat(context, hub);
  const began = performance.now();
  await chooseDevice(page);
  const load_ms = Math.round(performance.now() - began);
  await set(page, { max_tokens: options.tokens });
  if (keeps) await page.locator("#remember-yes").evaluate((node) => node.click());
  await turn(page, questions[0]);
  const next = await turn(page, questions[1]);
  await newChat(page);
  await turn(page, questions[0]);
  if (keeps) await pagesKept(page);
  await page.reload();
  await deviceSettled(page);
  const ready_ms = Math.round(await page.evaluate(() => performance.now()));
  const reloaded = await turn(page, questions[1]);
  const files_ms = (await readFiles(page, files)).toFixed(1);
  await context.close();
  return [load_ms, ready_ms, files_ms, ...next, ...reloaded];
}

const folder = mkdtempSync(join(tmpdir(), "moex-reload-"));
const model = options.model || await packSmall(folder, { layers: Number(options.layers) });
const hub = await Hub.start(["--backend", "local", "--model", model]);
const browser = await launch();
try {
  const list = await (await fetch(`${hub.url}/api/package`)).json();
  const files = list.files.filter(({ name }) => name.startsWith("weights/") || name === "hub.safetensors");
  const mb = (files.reduce((sum, { bytes }) => sum + bytes, 0) / 1e6).toFixed(1);
  if (with_header) console.log(columns);
  for (const way of options.ways.split(",")) {
    console.log([list.name, way, mb, ...await measure(browser, hub, files, way)].join(","));
  }
} finally {
  await browser.close();
  await hub.remove();
  rmSync(folder, { recursive: true, force: true });
}
