// Pages of keys and values on their way from the hub to "this device" and from there to the hub, in a real Chromium
// without a GPU: wasm/hand_off.js and the hub's /v1/prefill and /v1/pages, with a list of pages instead of a model. The
// stories with a model are in this_device_either.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, test } from "node:test";

import { changed, devicePages } from "./support/kv_pages.mjs";
import { Hub } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";
import { openTestWorker } from "./support/test_worker.mjs";

// A worker that answers {wish, tokens, held, choice, refuse_at, here, conversation} with {place, result, pages,
// measured}. A page is {before, magic, bytes} there, as numbers; `here` has the device's own pages in base64.
const program = `
import { HandOff } from "./hand_off.js";
let asked = null, pages = [];
const hand_off = new HandOff({
  route: (facts) => ({ ...asked.choice, facts }),
  held: () => asked.held,
  takePage(bytes) {
    if (pages.length === asked.refuse_at) return "refused";
    const hex = Array.from(bytes.subarray(0, 32), (byte) => byte.toString(16).padStart(2, "0")).join("");
    pages.push({ before: hex, magic: String.fromCharCode(...bytes.subarray(32, 36)), bytes: bytes.length - 32 });
    return "wholly";
  },
  async readPage(before, index) {
    return Uint8Array.from(atob(asked.here[index] ?? ""), (letter) => letter.charCodeAt(0));
  },
});
onmessage = async ({ data }) => {
  if (data.cancel) return hand_off.cancel();
  if (data.ended) return hand_off.ended(data.ended);
  asked = data;
  pages = [];
  hand_off.begin(data.wish, data.conversation ?? "one");
  const place = await hand_off.place(new Uint32Array(data.tokens));
  const { result, measured, hub_hands_off, hub_takes_pages } = hand_off;
  postMessage({ place, result, pages, measured, hub_hands_off, hub_takes_pages });
};`;

let browser;
let hub;
let other;      // a hub that computes the pages that a device would have, so that `hub` does not know their text
before(async () => {
  browser = await launch([], { webgpu: false });
  hub = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
  other = await Hub.start(["--backend", "local", "--arithmetic", "exact"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
  await other?.remove();
});

// Opens a page with such a worker at `at`. say(message) resolves to its answer, and tell(message) expects none.
async function open(t, at = hub) {
  const { context, page, asked } = await openTestWorker(t, browser, at, program);
  return {
    context, page, asked,
    say: (message) => page.evaluate((one) => globalThis.say(one), message),
    tell: (message) => page.evaluate((one) => globalThis.tell(one), message),
  };
}

const tokensOf = (num) => Array.from({ length: num }, (_, i) => (i * 37) % 1000);
const hashOf = (tokens) => createHash("sha256").update(new Uint8Array(new Uint32Array(tokens).buffer)).digest("hex");
const wish = { words: "to_hub", hub_answers: true, hub_context_tokens: 4096, answer_tokens: 10 };
const sends = { place: "hub", sends_pages: true, sends_as_u8: false };
const base64 = (pages) => pages.map((page) => Buffer.from(page).toString("base64"));
// Returns what `at` answers to the token ids `prompt`: the text, and the tokens that were not computed.
async function completed(at, prompt, pages) {
  const body = { prompt, max_tokens: 12, temperature: 0, ...pages ? { moex: { pages } } : {} };
  const response = await fetch(`${at.url}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  const { choices, usage } = await response.json();
  return { text: choices[0].text, cached: usage.prompt_tokens_details.cached_tokens };
}
const handed = { place: "handed", as_u8: false };

test("pages come in order, from the page on that the device lacks", async (t) => {
  const { say } = await open(t);
  const tokens = tokensOf(700);
  const whole = await say({ wish, tokens, held: 0, choice: handed });
  assert.equal(whole.place, "handed");
  assert.equal(whole.result.trouble, undefined);
  assert.equal(whole.pages.length, 6);
  whole.pages.forEach(({ before: hash, magic }, i) => {
    assert.equal(magic, "MxKv");
    assert.equal(hash, hashOf(tokens.slice(0, i * 128)));
  });
  const { bytes_per_s, hub_prompt_tokens_per_s, round_trip_s } = whole.measured;
  assert.ok(bytes_per_s > 0 && hub_prompt_tokens_per_s > 0 && round_trip_s > 0, JSON.stringify(whole.measured));

  const rest = await say({ wish, tokens, held: 300, choice: handed });
  assert.deepEqual(rest.pages, whole.pages.slice(2));
  const codes = await say({ wish, tokens, held: 0, choice: { place: "handed", as_u8: true } });
  const share = codes.pages[0].bytes / whole.pages[0].bytes;
  assert.ok(share > 0.5 && share < 0.6, `u8 has ${share} of the bytes of f16`);
});

test("the choice gets what was measured, and the first facts name nothing measured", async (t) => {
  const { say, tell } = await open(t);
  const tokens = tokensOf(300);
  const first = await say({ wish, tokens, held: 0, choice: { place: "here" } });
  assert.deepEqual(first.result.facts.here, { prompt_tokens_per_s: 0, answer_tokens_per_s: 0 });
  assert.equal(first.result.facts.bytes_per_s, 0);
  assert.deepEqual(first.pages, []);
  await tell({
    ended: { prompt_tokens: 300, cached_tokens: 0, completion_tokens: 40, prompt_tokens_per_s: 500, tokens_per_s: 30 },
  });
  await tell({
    ended: { prompt_tokens: 300, cached_tokens: 290, completion_tokens: 3, prompt_tokens_per_s: 9, tokens_per_s: 9 },
  });
  const hubs = { prompt_tokens_per_s: 900, answer_tokens_per_s: 50 };
  const second = await say({ wish: { ...wish, hub: hubs }, tokens, held: 0, choice: handed });
  assert.deepEqual(second.result.facts.here, { prompt_tokens_per_s: 500, answer_tokens_per_s: 30 });
  assert.deepEqual(second.result.facts.hub, hubs);
  const third = await say({ wish, tokens, held: 0, choice: { place: "hub" } });
  assert.equal(third.place, "hub");
  assert.equal(third.result.facts.bytes_per_s, second.measured.bytes_per_s);
});

test("where words may not leave the device, no request does", async (t) => {
  const { say, asked } = await open(t);
  asked.length = 0;
  for (const words of ["nowhere", undefined, "TO_HUB"]) {
    const answer = await say({ wish: { ...wish, words }, tokens: tokensOf(2000), held: 0, choice: handed });
    assert.equal(answer.place, "here");
    const sent = await say({ wish: { ...wish, words }, tokens: tokensOf(2000), held: 2000, choice: sends, here: [] });
    assert.equal(sent.place, "here");
  }
  assert.equal((await say({ wish: null, tokens: tokensOf(2000), held: 0, choice: handed })).place, "here");
  assert.deepEqual(asked.filter((path) => path.startsWith("/v1/") || path === "/health"), []);
});

test("a refused page, a refusal of the hub and a broken line leave the rest to the device", async (t) => {
  const { say, context } = await open(t);
  const tokens = tokensOf(700);
  const refused = await say({ wish, tokens, held: 0, choice: handed, refuse_at: 2 });
  assert.equal(refused.pages.length, 2);
  assert.match(refused.result.trouble, /refused/);

  const other = await say({ wish: { ...wish, model: "another" }, tokens, held: 0, choice: handed });
  assert.match(other.result.trouble, /404/);
  const after_it = await say({ wish, tokens, held: 0, choice: handed });
  assert.equal(after_it.pages.length, 6);

  // A record that is cut short, and one that claims more bytes than any page has.
  const bodies = [Buffer.from([200, 0, 0, 0, 1, 2, 3]), Buffer.from([255, 255, 255, 255, 1, 2, 3])];
  for (const body of bodies) {
    const answer = (route) => route.fulfill({ contentType: "application/octet-stream", body });
    await context.route("**/v1/prefill", answer);
    const cut = await say({ wish, tokens, held: 0, choice: handed });
    assert.deepEqual(cut.pages, []);
    assert.match(cut.result.trouble, /page of 4294967295 bytes|ended within a page/);
    await context.unroute("**/v1/prefill", answer);
  }
});

test("pages go on behind the last one after a line that broke", async (t) => {
  const { say, context } = await open(t);
  const tokens = tokensOf(700), whole = await say({ wish, tokens, held: 0, choice: handed });
  const asked_pages = [];
  await context.route("**/v1/prefill", async (route) => {
    asked_pages.push(JSON.parse(route.request().postData()).first_page);
    const response = await route.fetch(), body = await response.body();
    const is_cut = asked_pages.length < 3;      // after a page and a half
    await route.fulfill({ response, body: is_cut ? body.subarray(0, 1.5 * (4 + whole.pages[0].bytes)) : body });
  });
  const resumed = await say({ wish, tokens, held: 0, choice: handed });
  assert.deepEqual(asked_pages, [0, 1, 2]);
  assert.equal(resumed.result.trouble, undefined);
  assert.deepEqual(resumed.pages, whole.pages);
});

test("a cancelled question ends a hand-off that waits", async (t) => {
  const { say, tell, context, page } = await open(t);
  await context.route("**/v1/prefill", () => {});      // the hub never answers
  const request = page.waitForRequest((one) => one.url().endsWith("/v1/prefill")).catch(() => null);
  const answer = say({ wish, tokens: tokensOf(300), held: 0, choice: handed });
  await Promise.race([request, new Promise((done) => context.on("request", (one) => {
    if (one.url().endsWith("/v1/prefill")) done();
  }))]);
  await tell({ cancel: true });
  assert.match((await answer).result.trouble, /stopped/);
});

test("a hub that gives no model hands off no pages, and is not asked again", async (t) => {
  const closed = await Hub.start(["--backend", "local", "--give-model", "off"]);
  t.after(() => closed.remove());
  const { say } = await open(t, closed);
  const answer = await say({ wish, tokens: tokensOf(300), held: 0, choice: handed });
  assert.match(answer.result.trouble, /501/);
  assert.equal(answer.hub_hands_off, false);
  const next = await say({ wish, tokens: tokensOf(300), held: 0, choice: { place: "here" } });
  assert.equal(next.result.facts.hub_hands_off, false);
});

test("the hub takes what the device holds, and computes the new tokens only", async (t) => {
  const { say, asked } = await open(t);
  const tokens = tokensOf(700).map((id) => (id + 5) % 1000), own = await completed(other, tokens);
  const pages = await devicePages(other, tokens);
  const first = await say({ wish, tokens, held: 690, choice: sends, here: base64(pages) });
  assert.equal(first.place, "hub");
  assert.equal(first.result.trouble, undefined);
  assert.equal(first.result.sent_pages, 6);
  assert.ok(first.result.sent_bytes > 6 * 4 && first.measured.up_bytes_per_s > 0, JSON.stringify(first));
  assert.equal(asked.filter((path) => path.startsWith("/v1/pages")).length, 2, "it is asked, and sent in one request");

  const moved = await completed(hub, tokens, first.result.sent_as);
  assert.equal(moved.cached, 688);
  assert.equal(moved.text, own.text);
  assert.equal((await completed(hub, tokens)).cached, 0, "the pages are for their name alone");

  // The next turn of the conversation: the hub has the beginning, and gets the rest.
  const longer = [...tokens, ...tokensOf(200)];
  const next = await say({
    wish, tokens: longer, held: 900, choice: sends, here: base64(await devicePages(other, longer)),
  });
  assert.equal(next.result.sent_as, first.result.sent_as);
  assert.equal(next.result.sent_pages, 2);      // from the one on that was not whole
  assert.equal((await completed(hub, longer, next.result.sent_as)).cached, 896);

  // What the hub has computed itself is not sent at all.
  const known = tokensOf(512).map((id) => (id + 3) % 1000);
  await completed(hub, known);
  const nothing = await say({ wish, tokens: known, held: 512, choice: sends, here: [], conversation: "two" });
  assert.equal(nothing.result.trouble, undefined);
  assert.equal(nothing.result.sent_as, undefined);
  assert.equal(nothing.result.sent_pages, 0);
});

test("a cut line is tried again, and the pages that arrived are not sent twice", async (t) => {
  const { say, context } = await open(t);
  const tokens = tokensOf(1000).map((id) => (id + 7) % 1000), pages = await devicePages(other, tokens, "f32");
  let requests = 0;
  await context.route("**/v1/pages/*", (route) => {
    requests += 1;
    return requests === 2 ? route.abort("connectionreset") : route.continue();
  });
  const sent = await say({
    wish: { ...wish, sends: "f16" }, tokens, held: 1000, choice: sends, here: base64(pages), conversation: "three",
  });
  assert.equal(sent.result.trouble, undefined);
  assert.equal(requests, 3);
  assert.equal(sent.result.sent_pages, 8);
  assert.equal((await completed(hub, tokens, sent.result.sent_as)).cached, 992);
});

test("a cancelled question ends sending that waits, and the hub answers from what it has", async (t) => {
  const { say, tell, context } = await open(t);
  const tokens = tokensOf(1000).map((id) => (id + 13) % 1000), pages = await devicePages(other, tokens, "f32");
  let requests = 0, isWaiting = () => {};
  const waiting = new Promise((resolve) => { isWaiting = resolve; });
  await context.route("**/v1/pages/*", (route) => {
    requests += 1;
    return requests === 1 ? route.continue() : isWaiting();      // the second request is never answered
  });
  const answer = say({
    wish: { ...wish, sends: "f16" }, tokens, held: 1000, choice: sends, here: base64(pages), conversation: "five",
  });
  await waiting;
  await tell({ cancel: true });
  const { result } = await answer;
  assert.match(result.trouble, /stopped/);
  assert.equal(result.sent_pages, 4);
  assert.equal((await completed(hub, tokens, result.sent_as)).cached, 512);
});

test("a page of another text, model or form is refused by name", async (t) => {
  const { say } = await open(t);
  const tokens = tokensOf(300).map((id) => (id + 11) % 1000), pages = await devicePages(other, tokens);
  const fields = [
    [28, /model/], [60, /texts/], [92, /arithmetic/], [93, /weights/], [94, /rounding/], [95, /row_type|rows/],
    [96, /first_layer|rows/], [104, /num_kv_heads|rows/], [116, /window/], [120, /page_tokens/], [168, /before/],
    [200, /first_position/], [216, /tokens/],
  ];
  for (const [at, name] of fields) {
    const bad = changed(pages[0], (page) => { page[at] ^= 1; });
    const refused = await say({
      wish, tokens, held: 288, choice: sends, here: base64([bad, ...pages.slice(1)]), conversation: "four",
    });
    assert.equal(refused.result.sent_as, undefined, `byte ${at}`);
    assert.match(refused.result.trouble, name);
  }
  const good = await say({ wish, tokens, held: 288, choice: sends, here: base64(pages), conversation: "four" });
  assert.equal((await completed(hub, tokens, good.result.sent_as)).cached, 288);
});

test("a hub that takes no pages is not asked again", async (t) => {
  const closed = await Hub.start(["--backend", "local", "--give-model", "off"]);
  t.after(() => closed.remove());
  const { say } = await open(t, closed);
  const answer = await say({ wish, tokens: tokensOf(300), held: 300, choice: sends, here: [] });
  assert.match(answer.result.trouble, /501/);
  assert.equal(answer.hub_takes_pages, false);
  const next = await say({ wish, tokens: tokensOf(300), held: 300, choice: { place: "here" }, here: [] });
  assert.equal(next.result.facts.hub_takes_pages, false);
});
