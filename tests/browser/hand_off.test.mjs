// The hub's pages of keys and values on their way to "this device", in a real Chromium without a GPU: wasm/hand_off.js
// and the hub's /v1/prefill, with a list of pages instead of a model. The story with a model is in this_device_either.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, test } from "node:test";

import { Hub } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";
import { openTestWorker } from "./support/test_worker.mjs";

// A worker that answers {wish, tokens, held, choice, refuse_at} with {place, result, pages, measured}. A page is
// {before, magic, bytes} there, as numbers.
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
});
onmessage = async ({ data }) => {
  if (data.cancel) return hand_off.cancel();
  if (data.ended) return hand_off.ended(data.ended);
  asked = data;
  pages = [];
  hand_off.begin(data.wish);
  const place = await hand_off.place(new Uint32Array(data.tokens));
  const { result, measured, hub_hands_off } = hand_off;
  postMessage({ place, result, pages, measured, hub_hands_off });
};`;

let browser;
let hub;
before(async () => {
  browser = await launch([], { webgpu: false });
  hub = await Hub.start(["--backend", "local"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
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
