// The service worker of the chat page, in a real Chromium without a GPU: it serves weights from the browser's files and
// keeps the registry of sessions. The browser may end it at any moment, and everything works without it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Front } from "./support/front.mjs";
import { startSmallHub } from "./support/small_model.mjs";
import { launch } from "./support/tab.mjs";
import { openTestWorker } from "./support/test_worker.mjs";

// Stores the files of a model as "this device" does.
const program = `
import { FileStore } from "./file_store.js";
onmessage = async ({ data: { files, url } }) => {
  const store = await FileStore.open();
  await store.fetchAll(files, { url, key: "", has() {}, progress() {} });
  postMessage({ done: true });
};`;

let browser, hub;
before(async () => {
  [hub, browser] = await Promise.all([startSmallHub({ layers: 1 }), launch([], { webgpu: false })]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// Opens a page that the service worker controls, with the model's files in the browser. `front.asked`: the paths below
// /weights/ that the hub was asked for. `front.away`: a list takes the paths of all requests, which then get 503. end()
// ends the service worker.
async function open(t) {
  const front = await Front.start(hub, (request, response, pass) => {
    delete request.headers.origin;
    if (request.url.startsWith("/weights/")) front.asked.push(request.url);
    if (!front.away) return pass();
    front.away.push(request.url);
    return response.writeHead(503).end();
  });
  front.asked = [];
  front.away = null;
  t.after(() => front.stop());
  const { context, page } = await openTestWorker(t, browser, front, program);
  const { files } = await (await fetch(`${hub.url}/api/package`)).json();
  await page.evaluate((list) => globalThis.say({ files: list, url: new URL("api/package/", location).href }), files);
  assert.equal(await page.evaluate(keepPage), true);
  await page.reload();      // not the chat page, which removes the service worker while its place is the hub
  await page.waitForFunction(() => navigator.serviceWorker.controller);
  const session = await context.newCDPSession(page);
  await session.send("ServiceWorker.enable");
  const end = () => session.send("ServiceWorker.stopAllWorkers");
  const blob = files.find(({ name }) => name.startsWith("weights/"));
  const large = files.find(({ name }) => name === "hub.safetensors");
  return { front, page, end, blob, large };
}
const away = "js/chat/away.js";
const keepPage = async () => (await import(new URL("js/chat/away.js", document.baseURI))).keepPage(null);
const inAway = (page, name, ...args) => page.evaluate(async ([module, wanted, values]) => (
  (await import(new URL(module, document.baseURI)))[wanted](...values)), [away, name, args]);

// Returns {status, range, hash, bytes: their number} of a request for weights.
const weights = (page, hash, range = "") => page.evaluate(async ([name, wanted]) => {
  const response = await fetch(`weights/${name}`, { headers: wanted ? { Range: wanted } : {}, cache: "no-store" });
  const bytes = await response.arrayBuffer();
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { status: response.status, range: response.headers.get("content-range"), hash: hex, bytes: bytes.byteLength };
}, [hash, range]);

test("stored weights are served by ranges, and others by the hub", async (t) => {
  const { front, page, blob } = await open(t);
  const ranges = ["", "bytes=0-99", "bytes=100-", "bytes=-64", `bytes=64-${blob.bytes * 2}`];
  const here = [];
  for (const range of ranges) here.push(await weights(page, blob.sha256, range));
  assert.equal(here[0].hash, blob.sha256);
  assert.deepEqual(front.asked, [], "the hub was not asked");
  const unsatisfiable = await weights(page, blob.sha256, `bytes=${blob.bytes}-`);
  assert.equal(unsatisfiable.status, 416);
  assert.equal((await weights(page, "0".repeat(64))).status, 404);
  assert.equal(front.asked.length, 2);

  // Without the service worker the hub gives the same answers.
  await page.evaluate(async () => {
    for (const one of await navigator.serviceWorker.getRegistrations()) await one.unregister();
  });
  await page.reload();
  assert.equal(await page.evaluate(() => navigator.serviceWorker.controller), null);
  front.asked = [];
  for (const [i, range] of ranges.entries()) assert.deepEqual(await weights(page, blob.sha256, range), here[i], range);
  assert.equal(front.asked.length, ranges.length);
  assert.equal(await inAway(page, "numSessions"), null, "without a service worker it is not known");
});

const session = (conversation, expires_at = Date.now() + 1e9) => ({ conversation, model: "m", pages: 2, expires_at });

test("the service worker is ended while it serves, while it writes, and while it stores the page", async (t) => {
  const { front, page, end, blob, large } = await open(t);

  // While nothing is asked of it, and in the middle of a reply: what was not read is asked for again.
  await end();
  assert.equal((await weights(page, blob.sha256)).hash, blob.sha256);
  await page.evaluate(async (name) => {
    const { body } = await fetch(`weights/${name}`, { cache: "no-store" });
    globalThis.reader = body.getReader();
    globalThis.first = (await globalThis.reader.read()).value.length;
  }, large.sha256);
  await end();
  const read = await page.evaluate(async () => {
    let bytes = globalThis.first;
    for (;;) {
      const { done, value } = await globalThis.reader.read().catch(() => ({ done: true }));
      if (done) return bytes;
      bytes += value.length;
    }
  });
  const rest = read < large.bytes ? (await weights(page, large.sha256, `bytes=${read}-`)).bytes : 0;
  assert.equal(read + rest, large.bytes);
  assert.deepEqual(front.asked, []);

  // While it writes a session: the session is noted, or it is not, and it can be noted again.
  assert.equal(await inAway(page, "numSessions"), 0);
  const noting = inAway(page, "noteSession", session("a"));
  await end();
  await noting;
  assert.ok([0, 1].includes(await inAway(page, "numSessions")));
  assert.deepEqual(await inAway(page, "noteSession", session("a")), { type: "ACK", sessionId: "a" });
  await inAway(page, "noteSession", session("b"));
  await inAway(page, "noteSession", session("c", Date.now() - 1));
  await end();
  assert.equal(await inAway(page, "numSessions"), 2, "one has expired");
  await inAway(page, "noteSession", { conversation: "a", pages: 0 });
  assert.equal(await inAway(page, "numSessions"), 1, "one was deleted");

  // While it stores the page.
  await page.evaluate(async () => {
    for (const name of await caches.keys()) await caches.delete(name);
  });
  const keeping = inAway(page, "keepPage", null);
  await end();
  const again = inAway(page, "keepPage", null);
  if (!await Promise.race([keeping, again])) await inAway(page, "keepPage", null);
  await again;
  // A proxy says that its hub is away: it is asked for one file of the page, and not for each.
  front.away = [];
  const kept = ["js/api.js", "js/chat.js", "css/app.css"];
  const states = await page.evaluate(async (paths) => {
    const found = [];
    for (const path of paths) found.push((await fetch(path)).status);
    return found;
  }, kept);
  assert.deepEqual(states, kept.map(() => 200));
  // The browser asks for the program of the service worker, and for the page's icon, when it likes.
  const isOfBrowser = (url) => ["/service_worker.js", "/favicon.svg"].includes(url);
  assert.deepEqual(front.away.filter((url) => !url.startsWith("/api/") && !isOfBrowser(url)), ["/js/api.js"]);
  await front.stop();
  await page.goto(`${front.url}/`);
  await page.locator("#prompt").waitFor();
});
