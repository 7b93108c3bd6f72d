// "This device" in the chat page, in a real Chromium on the software adapter: the model comes from the hub once, then
// the page answers by itself, also while there is no hub.
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask, keptNow, settled } from "./support/chat_page.mjs";
import { Front } from "./support/front.mjs";
import { Hub, chat } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

const prompt = process.env.MOEX_STORY_PROMPT ?? "Tell me a story about a garden.";
const max_tokens = 24;
const few_tokens = 8;      // where it is enough that the words are the hub's
let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

async function openChat(context, hub) {
  context.setDefaultTimeout(0);      // the test's own limit counts
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(String(error)));
  await page.goto(hub.url);
  await page.waitForFunction(() => document.getElementById("model").textContent !== "");
  return page;
}

async function set(page, fields) {
  await page.locator("#open-settings").click();
  for (const [name, value] of Object.entries(fields)) {
    if (name === "place") await page.locator("#place").selectOption(value);
    else await page.locator(`#${name}`).evaluate((node, text) => {
      node.value = text;
      node.dispatchEvent(new Event("input"));
    }, value);
  }
  await page.locator("#close-settings").click();
}

// Until the model is on the GPU, or the sentence that it will not be.
async function deviceSettled(page) {
  await page.waitForFunction(() => {
    const words = document.getElementById("device-words");
    return words.className === "problem" || /^Ready/.test(words.textContent);
  });
  return page.locator("#device-words").textContent();
}

// Consents where the page asks, and does not just say what is wrong.
async function loadIfAsked(page) {
  await page.waitForFunction(() => (
    !document.getElementById("device-load").hidden || document.getElementById("device-words").className === "problem"));
  if (await page.locator("#device-load").isVisible()) await page.locator("#device-load").click();
}

async function chooseDevice(page) {
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await page.locator("#device-load").click();
  const words = await deviceSettled(page);
  await page.locator("#close-settings").click();
  assert.match(words, /^Ready/, words);
  await set(page, { temperature: "0" });
}

// The last answer as it is kept, whole.
async function lastAnswer(page) {
  await settled(page);
  for (;;) {
    const { conversations } = await keptNow(page);
    const message = conversations.flatMap(({ messages }) => messages).filter(({ role }) => role === "assistant")
      .sort((a, b) => a.at - b.at).at(-1);
    if (message?.end) return message;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function answerTo(page, words) {
  await page.locator("#new-chat").evaluate((node) => node.click());
  await ask(page, words);
  return lastAnswer(page);
}

const greedy = (hub, words, length = max_tokens) => chat(hub, {
  model: "moex-demo", messages: [{ role: "user", content: words }], temperature: 0, max_tokens: length,
});
const filesOf = (page) => page.evaluate(async () => {
  const names = [];
  for await (const name of (await navigator.storage.getDirectory()).keys()) names.push(name);
  return names;
});

test("an empty store, consent, the hub's own words, and on without the hub", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const expected = await greedy(hub, prompt);
  const other = "What is in the box?";
  const expected_other = await greedy(hub, other);
  assert.equal(expected.error, null);

  const page = await openChat(await browser.newContext(), hub);
  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await page.locator("#device-load").waitFor();
  assert.match(await page.locator("#device-load").textContent(), /^Load \d+ MB$/);
  assert.match(await page.locator("#device-words").textContent(), /^The model has \d+ MB\./);
  assert.ok(!asked.some((path) => path.startsWith("/api/package/")), "nothing is loaded before consent");

  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /^Ready/);
  await page.locator("#close-settings").click();
  await set(page, { max_tokens: String(max_tokens), temperature: "0" });
  const first = await answerTo(page, prompt);
  assert.equal(first.content, expected.text);
  assert.equal(first.facts.place, "device");
  assert.equal(first.facts.tokens, max_tokens);
  assert.equal(await page.locator(".facts .place").last().textContent(), "this device");
  assert.ok(!asked.includes("/v1/chat/completions"), "the hub was not asked");

  // Another place, another badge.
  await set(page, { place: "hub" });
  assert.equal((await answerTo(page, other)).facts.place, "hub");
  assert.equal(await page.locator(".facts .place").last().textContent(), "hub");

  // What is here already needs no consent.
  await page.locator("#open-settings").click();
  const fetched_before = asked.filter((path) => path.startsWith("/api/package/")).length;
  await page.locator("#place").selectOption("device");
  assert.match(await deviceSettled(page), /^Ready/);
  await page.locator("#close-settings").click();
  assert.equal(asked.filter((path) => path.startsWith("/api/package/")).length, fetched_before);

  await hub.stop();
  const alone = await answerTo(page, other);
  assert.equal(alone.end.reason, "length");
  assert.equal(alone.content, expected_other.text);
  assert.deepEqual(page.errors, []);
});

// As the settings name them. Drawn from the likeliest tokens, from all logits, and chosen with penalties and biases.
const kinds = [
  { temperature: 1, top_p: 0.9, top_k: 20, seed: 11 },
  { temperature: 0.9, top_p: 0.8, top_k: 0, min_p: 0.02, seed: 12 },
  {
    temperature: 0.7, top_p: 1, top_k: 5, repetition_penalty: 1.3, presence_penalty: 0.5, frequency_penalty: 0.5,
    seed: 13, logit_bias: [[" garden", false], [" sea", 3]],
  },
];
// Fields that were set before and are not named again are emptied.
const fieldsOf = (kind) => Object.fromEntries(
  ["temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias"].map((name) => [name, kind[name] === undefined ? "" : typeof kind[name] === "number"
    ? String(kind[name]) : JSON.stringify(kind[name])]));

test("the settings of sampling give what they give at the hub, and a form of answers is refused", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
  t.after(() => hub.remove());
  const page = await openChat(await browser.newContext(), hub);
  await chooseDevice(page);
  const texts = [];
  for (const kind of kinds) {
    const messages = [{ role: "user", content: prompt }];
    const expected = await chat(hub, { model: "moex-demo", messages, max_tokens, ...kind });
    assert.equal(expected.error, null);
    await set(page, { ...fieldsOf(kind), max_tokens: String(max_tokens) });
    const answer = await answerTo(page, prompt);
    assert.equal(answer.facts.place, "device");
    assert.equal(answer.content, expected.text, JSON.stringify(kind));
    texts.push(answer.content);
  }
  assert.equal(new Set(texts).size, kinds.length, "the settings make a difference");

  // Without a seed another one is drawn for each answer.
  const wild = { ...kinds[0], temperature: 2, top_k: 60, seed: undefined };
  await set(page, { ...fieldsOf(wild), max_tokens: String(few_tokens) });
  assert.notEqual((await answerTo(page, prompt)).content, (await answerTo(page, prompt)).content);

  await set(page, { grammar: 'root ::= "yes"' });
  await page.locator("#open-settings").click();
  await page.locator("details", { has: page.locator("#grammar") }).evaluate((node) => { node.open = true; });
  assert.equal(await page.locator("#device-form-hint").isVisible(), true);
  await page.locator("#close-settings").click();
  const refused = await answerTo(page, prompt);
  assert.equal(refused.end.reason, "failed");
  assert.match(refused.end.words, /plain text only/);
  assert.deepEqual(page.errors, []);
});

test("cancel, stop words, and a continuation", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const { text } = await greedy(hub, prompt);
  const page = await openChat(await browser.newContext(), hub);
  await chooseDevice(page);

  await ask(page, prompt);
  await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent.length > 10);
  await page.locator("#stop").click();
  const stopped = await lastAnswer(page);
  assert.equal(stopped.end.reason, "stopped");
  assert.ok(text.startsWith(stopped.content.slice(0, text.length)), "what came is the hub's beginning");

  const stop = text.slice(20, 26);
  await set(page, { max_tokens: String(max_tokens), stop_words: stop });
  const ended = await answerTo(page, prompt);
  assert.equal(ended.end.reason, "stop");
  assert.equal(ended.content, text.slice(0, text.indexOf(stop)));

  await set(page, { max_tokens: "8", stop_words: "" });
  const begun = await answerTo(page, prompt);
  assert.equal(begun.end.reason, "length");
  await set(page, { max_tokens: String(max_tokens - 8) });
  await page.locator(".ended .button").last().click();
  await page.waitForFunction((before) => (
    document.querySelector(".message.assistant .body").textContent.length > before), begun.content.length);
  assert.equal((await lastAnswer(page)).content, text);
  assert.deepEqual(page.errors, []);
});

test("a download that breaks heals itself, and bytes of another hash are dropped", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const { files } = await (await fetch(`${hub.url}/api/package`)).json();
  const pathOf = (wanted) => `/api/package/${files.find(({ name }) => name === wanted).sha256}`;
  const large = pathOf("hub.safetensors"), text = pathOf("tokenizer.json");
  const begins = new Map([[large, []], [text, []]]);       // of the ranges that were asked for
  let is_away = false;
  const front = await Front.start(hub, async (request, response, pass) => {
    delete request.headers.origin;      // the front's, which the hub does not know
    const asked = begins.get(request.url);
    if (!asked) return pass();
    if (is_away) return request.socket.destroy();
    const begin = Number(/^bytes=(\d+)-/.exec(request.headers.range)[1]);
    asked.push(begin);
    const spoils = request.url === text && asked.length === 1;
    // Of the large file's every range half comes until a line has broken twice behind new bytes.
    const breaks = request.url === large && new Set(asked).size <= 2;
    if (!breaks && !spoils) return pass();
    const answer = await fetch(hub.url + request.url, { headers: { range: request.headers.range } });
    const bytes = new Uint8Array(await answer.arrayBuffer());
    if (response.destroyed) return undefined;      // who asked has left
    response.writeHead(206, { ...Object.fromEntries(answer.headers), "content-length": bytes.length });
    if (spoils) {
      bytes[1000] ^= 1;
      return response.end(bytes);
    }
    return response.write(bytes.subarray(0, bytes.length >> 1), () => response.destroy());
  });
  t.after(() => front.stop());

  const page = await openChat(await browser.newContext(), front);
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /tokenizer\.json from the hub does not match its hash/);

  // Nothing comes any more: told after some tries, and the rest comes when the hub is back.
  is_away = true;
  await page.locator("#device-again").click();
  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /does not come/);
  is_away = false;
  await page.locator("#device-again").click();
  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /^Ready/);

  const places = begins.get(large);
  assert.equal(places[0], 0);
  assert.ok(new Set(places).size >= 3, `both lines were replaced: ${places}`);
  assert.deepEqual(places, places.slice().sort((a, b) => a - b), "what had come was kept");
  assert.deepEqual(begins.get(text).slice(0, 2), [0, 0], "nothing of the spoiled bytes was kept");
  assert.deepEqual(page.errors, []);
});

const isAway = (page) => page.evaluate(() => fetch("/health").then(() => false, () => true));
const kept = (page) => page.waitForFunction(() => !document.getElementById("device-kept").hidden);
const greets = (page, words) => page.locator("#welcome h2", { hasText: words }).waitFor({ state: "attached" });
const new_words = "What shall we write today?";
// What the browser keeps of the page itself.
const keptOf = (page) => page.evaluate(async () => ({
  workers: (await navigator.serviceWorker.getRegistrations()).length, sets: await caches.keys(),
}));
const nothing = { workers: 0, sets: [] };

test("loaded again without its hub the page goes on; a newer page takes its place; forgetting ends it", async (t) => {
  let hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
  const pages = mkdtempSync(join(tmpdir(), "moex-pages-"));
  t.after(() => {
    rmSync(pages, { recursive: true });
    return hub.remove();
  });
  const others = ["What is in the box?", "Who lives in the tower?"];
  const expected = await Promise.all(others.map((words) => greedy(hub, words, few_tokens)));
  const page = await openChat(await browser.newContext(), hub);
  assert.deepEqual(await keptOf(page), nothing, "nothing is kept for whoever asks the hub");
  await chooseDevice(page);
  await set(page, { max_tokens: String(few_tokens) });
  await kept(page);
  const { sets: [first_set] } = await keptOf(page);

  await hub.stop();
  await page.reload();
  assert.equal(await isAway(page), true);
  assert.match(await deviceSettled(page), /^Ready/);
  assert.equal(await page.locator("#model").textContent(), "moex-demo");
  assert.equal((await answerTo(page, others[0])).content, expected[0].text);
  await assert.rejects(page.goto(`${hub.url}/join.html`), /ERR_CONNECTION_REFUSED/, "other pages are not kept");

  // The hub is back with another page: it is shown at once, and kept instead.
  cpSync("static", pages, { recursive: true });
  const table = join(pages, "js/tables/chat.js");
  writeFileSync(table, readFileSync(table, "utf8").replace("What shall we write?", new_words));
  hub = await Hub.start([...hub.args, "--static", pages], { state: hub.state, port: hub.port });
  await page.goto(hub.url);
  await greets(page, new_words);
  await deviceSettled(page);
  await kept(page);
  const { sets } = await keptOf(page);
  assert.equal(sets.length, 1);
  assert.notEqual(sets[0], first_set);
  await hub.stop();
  await page.reload();
  await greets(page, new_words);
  assert.match(await deviceSettled(page), /^Ready/);
  assert.equal((await answerTo(page, others[1])).content, expected[1].text);
  assert.deepEqual(page.errors, []);

  // Whoever goes back to the hub keeps no page, nor does whoever forgets everything.
  hub = await Hub.start(hub.args, { state: hub.state, port: hub.port });
  await page.reload();
  await deviceSettled(page);
  await kept(page);
  await set(page, { place: "hub" });
  while ((await keptOf(page)).workers > 0) await new Promise((go) => { setTimeout(go, 50); });
  await set(page, { place: "device" });
  await kept(page);
  await page.locator("#open-settings").click();
  await page.locator("#forget").click();
  await page.locator("#forget-yes").click();
  await page.locator("#toast").getByText("Everything").waitFor();
  assert.deepEqual(await keptOf(page), nothing);
  await hub.stop();
  await assert.rejects(page.reload(), /ERR_CONNECTION_REFUSED/);
});

// As the browser keeps it for all tabs, once it is whole.
async function answerIn(page, words) {
  for (;;) {
    const { conversations } = await keptNow(page);
    const found = conversations.find(({ messages }) => messages[0].content === words);
    const message = found?.messages.find(({ role, end }) => role === "assistant" && end);
    if (message) return message;
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
}

test("two tabs at once share one store, and both answer", async (t) => {
  const hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
  t.after(() => hub.remove());
  const ranges = [];
  const front = await Front.start(hub, (request, response, pass) => {
    delete request.headers.origin;
    if (request.url.startsWith("/api/package/")) ranges.push(`${request.url} ${request.headers.range}`);
    pass();
  });
  t.after(() => front.stop());

  const context = await browser.newContext();
  const tabs = [await openChat(context, front), await openChat(context, front)];
  for (const page of tabs) {
    await page.locator("#open-settings").click();
    await page.locator("#place").selectOption("device");
    await page.locator("#device-load").waitFor();
  }
  await Promise.all(tabs.map((page) => page.locator("#device-load").click()));
  for (const page of tabs) assert.match(await deviceSettled(page), /^Ready/);
  assert.ok(ranges.length > 0);
  assert.equal(new Set(ranges).size, ranges.length, "no byte was asked for twice");

  const words = ["Tell me of the sea.", "Tell me of the forest."];
  for (const page of tabs) {
    await page.locator("#close-settings").click();
    await set(page, { max_tokens: String(few_tokens), temperature: "0" });
  }
  await Promise.all(tabs.map((page, i) => ask(page, words[i])));
  for (const [i, page] of tabs.entries()) {
    const { content, facts } = await answerIn(page, words[i]);
    assert.equal(facts.place, "device");
    assert.equal(content, (await greedy(hub, words[i], few_tokens)).text);
    assert.deepEqual(page.errors, []);
  }
});

test("a GPU that is lost in mid-answer gives the same words", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const page = await openChat(await browser.newContext(), hub);
  await chooseDevice(page);
  await set(page, { max_tokens: String(max_tokens), ...fieldsOf(kinds[0]) });
  const { content: text } = await answerTo(page, prompt);
  await page.locator("#new-chat").evaluate((node) => node.click());
  await ask(page, prompt);
  await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent.length > 10);

  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  process.kill(processInfo.find(({ type }) => type === "GPU").id, "SIGKILL");
  const answer = await lastAnswer(page);
  assert.equal(answer.end.words, "");
  assert.equal(answer.content, text);
  assert.deepEqual(page.errors, []);
});

test("forgetting drops the model; what does not fit, and a hub that keeps its model, are told", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const context = await browser.newContext();
  const page = await openChat(context, hub);
  await chooseDevice(page);
  assert.deepEqual(await filesOf(page), ["moex-models"]);
  await page.locator("#open-settings").click();
  await page.locator("#forget").click();
  await page.locator("#forget-yes").click();
  await page.locator("#toast").getByText("Everything").waitFor();
  assert.deepEqual(await filesOf(page), []);

  const session = await context.newCDPSession(page);
  await session.send("Storage.overrideQuotaForOrigin", { origin: hub.url, quotaSize: 1 << 20 });
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await loadIfAsked(page);      // what was forgotten may be counted still, and then nothing fits
  assert.match(await deviceSettled(page), /^The model does not fit this device: /);
  await page.locator("#prompt").fill(prompt);
  await page.locator("#prompt").press("Enter");
  await page.locator("#toast").getByText("not on this device yet").waitFor();
  assert.equal(await page.locator(".message").count(), 0, "nothing is asked of the hub instead");
  assert.deepEqual(page.errors, []);

  const closed = await Hub.start(["--backend", "local", "--give-model", "off"]);
  t.after(() => closed.remove());
  const other = await openChat(await browser.newContext(), closed);
  await other.locator("#open-settings").click();
  assert.equal(await other.locator("#place").isVisible(), false);
});

test("a browser without WebGPU says so", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const blind = await launch([], { webgpu: false });
  t.after(() => blind.close());
  const page = await openChat(await blind.newContext(), hub);
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await loadIfAsked(page);
  assert.match(await deviceSettled(page), /WebGPU/);
});
