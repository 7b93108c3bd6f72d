// The stored files of "this device", in a real Chromium on the software adapter: a broken download, the page without
// its hub, a store shared by two tabs, and complete deletion.
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { ask, keptNow } from "./support/chat_page.mjs";
import {
  answerTo, chooseDevice, deviceSettled, few_tokens, greedy, loadIfAsked, openChat, prompt, set, takeWay,
} from "./support/device_page.mjs";
import { Front } from "./support/front.mjs";
import { Hub } from "./support/hub.mjs";
import { allStored, namesKept, usesWritten } from "./support/store.mjs";
import { launch, openTab } from "./support/tab.mjs";

let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

const filesOf = (page) => page.evaluate(async () => {
  const names = [];
  for await (const name of (await navigator.storage.getDirectory()).keys()) names.push(name);
  return names;
});

test("a broken download is resumed, and bytes with a wrong hash are dropped", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const { files } = await (await fetch(`${hub.url}/api/package`)).json();
  const pathOf = (wanted) => `/api/package/${files.find(({ name }) => name === wanted).sha256}`;
  const large = pathOf("hub.safetensors"), text = pathOf("tokenizer.json");
  const begins = new Map([[large, []], [text, []]]);       // path -> first byte of each requested range
  let is_away = false;
  const front = await Front.start(hub, async (request, response, pass) => {
    delete request.headers.origin;      // the header names the proxy, so the hub would refuse the request
    const asked = begins.get(request.url);
    if (!asked) return pass();
    if (is_away) return request.socket.destroy();
    const begin = Number(/^bytes=(\d+)-/.exec(request.headers.range)[1]);
    asked.push(begin);
    const spoils = request.url === text && asked.length === 1;
    // Send only half of every range of the large file, until a connection has broken twice after new bytes.
    const breaks = request.url === large && new Set(asked).size <= 2;
    if (!breaks && !spoils) return pass();
    const answer = await fetch(hub.url + request.url, { headers: { range: request.headers.range } });
    const bytes = new Uint8Array(await answer.arrayBuffer());
    if (response.destroyed) return undefined;      // the page has closed the connection
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

  // The hub stops answering: the page reports it after some attempts, and the missing bytes arrive when the hub is
  // back.
  is_away = true;
  await page.locator("#device-again").click();
  assert.match(await deviceSettled(page), /cannot be downloaded/);
  is_away = false;
  await page.locator("#device-again").click();
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
// Returns the stored parts of the page's own program.
const keptOf = (page) => page.evaluate(async () => ({
  workers: (await navigator.serviceWorker.getRegistrations()).length, sets: await caches.keys(),
}));
const nothing = { workers: 0, sets: [] };

test("the page works without its hub until replaced or deleted", async (t) => {
  let hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
  const pages = mkdtempSync(join(tmpdir(), "moex-pages-"));
  t.after(() => {
    rmSync(pages, { recursive: true });
    return hub.remove();
  });
  const others = ["What is in the box?", "Who lives in the tower?"];
  const expected = await Promise.all(others.map((words) => greedy(hub, words, few_tokens)));
  const context = await browser.newContext();
  await takeWay(context, "tab");      // a reload has to load the model again
  const page = await openChat(context, hub);
  assert.deepEqual(await keptOf(page), nothing, "nothing is stored while the hub answers");
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

  // The hub is back with another page: the new page is shown at once, and stored instead.
  cpSync("static", pages, { recursive: true });
  const table = join(pages, "js/words/chat.js");
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

  // A switch back to the hub removes the stored page, and so does "Delete everything".
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

// Returns an answer as the browser stores it for all tabs, when it is complete.
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
  // The second tab may have seen the first one's download begin, which hides its button.
  await Promise.all(tabs.map((page) => page.locator("#device-load").evaluate((node) => node.click())));
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

test("lent experts are reused here and kept when there is no room", async (t) => {
  const hub = await Hub.start(["--replicas", "1"]);
  t.after(() => hub.remove());
  const { files, bytes } = await (await fetch(`${hub.url}/api/package`)).json();
  const blobs = files.filter(({ name }) => name.startsWith("weights/"));
  const blob_bytes = blobs.reduce((sum, file) => sum + file.bytes, 0);
  const context = await browser.newContext();
  const tab = await openTab(context, hub.join);
  await allStored(tab);
  assert.equal((await tab.evaluate(namesKept)).length, blobs.length);
  await tab.getByRole("button", { name: "Stop" }).click();
  await usesWritten(tab, blobs.length);

  // The quota has room for the experts or for the whole model, but not for both.
  const session = await context.newCDPSession(tab);
  const limit = (quotaSize) => session.send("Storage.overrideQuotaForOrigin", { origin: hub.url, quotaSize });
  await limit(blob_bytes + ((bytes - blob_bytes) >> 1));
  const page = await openChat(context, hub);
  await page.locator("#open-settings").click();
  await page.locator("#place").selectOption("device");
  await page.locator("#device-load").click();
  assert.match(await deviceSettled(page), /; experts that this browser lends use \d+ bytes and stay/);
  const names = new Set(await page.evaluate(namesKept));
  assert.ok(blobs.every(({ sha256 }) => names.has(sha256)));

  await limit(4 * bytes);
  const ranges = [];
  page.on("request", (request) => ranges.push(request.url().split("/").at(-1)));
  await page.locator("#device-again").click();
  assert.match(await deviceSettled(page), /^Ready/);
  const lent_names = new Set(blobs.map(({ sha256 }) => sha256));
  assert.ok(ranges.some((name) => files.some(({ sha256 }) => sha256 === name)), "the rest was loaded");
  assert.deepEqual(ranges.filter((name) => lent_names.has(name)), []);
  assert.deepEqual(page.errors, []);
});

test("forgetting deletes the model; a misfit and a closed hub are reported", async (t) => {
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
  await loadIfAsked(page);      // the quota may still count deleted bytes
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
