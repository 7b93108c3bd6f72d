// The chat page's modules of "this device": loading, questions while it loads, and the choice of a place.
import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import { afterEach, test } from "node:test";

import { fromJson, linked, messagesFor, newConversation, toJson } from "../../static/js/chat/conversation.js";
import { ThisDevice } from "../../static/js/chat/device.js";
import { Places, hasOtherModel } from "../../static/js/chat/places.js";
import { betterOf, pairUp, stateOf } from "../../static/js/chat/refine.js";
import { settingsOf } from "../../static/js/chat/settings.js";
import { newAnswer } from "../../static/js/chat/turn.js";
import {
  bannerWords, bothWords, deviceWords, errorWords, factsOf, offerWords, placeWords, poolWords,
} from "../../static/js/chat/words.js";
import { setLanguage } from "../../static/js/language.js";
import { question, reply } from "./chat_messages.mjs";

globalThis.crypto ??= webcrypto;      // Node 18 has no global crypto; browsers have
afterEach(() => setLanguage("en"));

test("MissingModelIsExplainedToTheUser", () => {
  const failed = (code, message) => deviceWords({ phase: "failed", code, message });
  assert.match(failed("no_space", "2 bytes are needed, 1 are free."), /does not fit this device: 2 bytes .* free\.$/);
  assert.match(failed("no_files", ""), /keeps no files/);
  assert.match(failed("processor_too_small", "9 MB"), /too large for this device's processor: 9 MB\.$/);
  const ready = { phase: "ready", adapter: "", software: false, processor: { answer_tokens_per_s: 12.34 } };
  assert.match(deviceWords(ready), /^Ready: .* on this device's processor, about 12\.3 tokens a second\.$/);
  assert.match(failed("unavailable", "the hub answered 404"), /cannot answer: the hub answered 404\.$/);
  assert.match(errorWords({ status: 400, code: "device_device_lost", message: "gone" }), /GPU was lost: gone\./);
  assert.match(deviceWords({ phase: "fetching", done_bytes: 5e6, all_bytes: 20e6 }), /5\.0 MB of 20 MB/);
});

// A channel that delivers each message at once.
class DirectChannel {
  constructor() {
    const port = () => ({
      onmessage: null, close() {}, postMessage(data, ports = []) { this.to.onmessage?.({ data, ports }); },
    });
    [this.port1, this.port2] = [port(), port()];
    [this.port1.to, this.port2.to] = [this.port2, this.port1];
  }
}

// Simulates the worker of "this device" (wasm/model_desk.js). The test writes its reports.
class ScriptedWorker {
  static last = null;
  constructor() {
    this.posted = [];
    ScriptedWorker.last = this;
  }
  postMessage(message, [port]) {
    this.port = port;
    port.onmessage = ({ data }) => this.hear(data);
  }
  hear({ type, sessionId, payload }) {
    this.posted.push({ type, payload });
    this.session = sessionId;
    if (type === "GET_TOKEN") this.answer = payload.answer;
    if (type === "START_SESSION") this.send("ACK", { home: "a desk", reports: [] });
  }
  send(type, payload) { this.port.postMessage({ type, sessionId: this.session, payload }); }
  report(data) {
    const is_answer = ["text", "early", "placed", "ended", "refused"].some((kind) => kind in data);
    if (is_answer) this.send("TOKEN", { answer: this.answer, ...data });
    else this.send("STATE", data);
  }
  count(wanted) { return this.posted.filter(({ type }) => type === wanted).length; }
  terminate() {}
}

// Simulates such a worker. Its GPU has room for the keys and values of `room_tokens` tokens.
class SmallWorker extends ScriptedWorker {
  static room_tokens = 0;
  static loads = [];
  hear(message) {
    super.hear(message);
    const { type, payload: { context_tokens_max: context_tokens, kv_share } } = message;
    const looked = { name: "m", bytes: 9, missing_bytes: 0 };
    if (type === "START_SESSION") queueMicrotask(() => this.report({ looked }));
    if (type !== "LOAD") return;
    SmallWorker.loads.push(`${context_tokens}/${kv_share}`);
    const fits = context_tokens <= SmallWorker.room_tokens;
    queueMicrotask(() => this.report(
      fits ? { ready: { context_tokens } } : { failed: { code: "no_memory", message: "out of memory" } }));
  }
}

// Returns a device that starts a `Worker`, in a browser without locks and SharedWorkers.
function deviceWith(Worker, navigator = { gpu: {} }) {
  ScriptedWorker.last = null;
  Object.assign(globalThis, { isSecureContext: true, Worker, MessageChannel: DirectChannel });
  Object.defineProperty(globalThis, "navigator", { value: navigator, configurable: true });
  return new ThisDevice({ apiKey: () => "", remembers: () => false, onChange: () => {} });
}
const soon = () => new Promise((resolve) => setImmediate(resolve));
// Begins to use the model; resolves to the worker.
async function begun(device) {
  device.begin();
  while (!ScriptedWorker.last?.session) await soon();
  return ScriptedWorker.last;
}

test("GpuWithLittleMemoryGetsASmallerContext", async () => {
  const settledWith = async (room_tokens) => {
    SmallWorker.room_tokens = room_tokens;
    SmallWorker.loads = [];
    const device = deviceWith(SmallWorker, { gpu: {}, deviceMemory: 8 });
    device.begin();
    await device.settled();
    return device.state;
  };
  const halved = await settledWith(1500);
  assert.equal(halved.context_tokens, 1024);
  assert.match(deviceWords(halved), /memory is short, so a conversation has room for 1,024 tokens\.$/);
  const shares = ["4096/1", "4096/2", "4096/4"];
  assert.deepEqual(SmallWorker.loads, [...shares, "2048/4", "1024/4"]);
  const told = await settledWith(0);
  assert.deepEqual(SmallWorker.loads, [...shares, "2048/4", "1024/4", "512/4"]);
  assert.match(deviceWords(told), /GPU has too little memory for the model: out of memory\.$/);
});

test("FullStorageIsExplainedAndTheModelIsNotLoadedAgain", async () => {
  const device = deviceWith(ScriptedWorker);
  const worker = await begun(device);
  worker.report({ looked: { name: "m", bytes: 9, missing_bytes: 0 } });
  worker.report({ ready: { context_tokens: 4096 } });
  const answer = device.answer({ messages: [] }, { signal: new AbortController().signal, onChunk: () => {} });
  while (worker.count("GET_TOKEN") === 0) await soon();
  worker.report({ failed: { code: "io_error", message: "a part of the conversation was not kept" } });
  await assert.rejects(answer, (error) => {
    assert.equal(error.code, "device_io_error");
    assert.match(errorWords(error), /^This browser's storage is full, or .* removed: .* \(a part .* kept\)\.$/);
    return true;
  });
  await soon();
  assert.equal(device.state.phase, "failed");
  assert.equal(worker.count("LOAD"), 1);
  assert.equal(ScriptedWorker.last, worker);
  assert.equal(device.kv_share, 1, "a smaller share would keep more pages in files");
  setLanguage("de");
  assert.match(deviceWords(device.state), /^Der Speicher dieses Browsers ist voll, oder .* gelöscht: /);
});

test("QuestionAskedWhileTheModelLoadsWaits", async () => {
  const device = deviceWith(ScriptedWorker);
  const worker = await begun(device);
  const asked = () => worker.count("GET_TOKEN");
  worker.report({ looked: { name: "m", bytes: 9, missing_bytes: 0 } });
  assert.equal(device.is_coming, true);
  const chunks = [];
  const onChunk = (one) => chunks.push(one);
  const answer = device.answer({ messages: [] }, { signal: new AbortController().signal, onChunk });
  const stopped = new AbortController();
  const other = device.answer({ messages: [] }, { signal: stopped.signal, onChunk: () => {} });
  stopped.abort();
  await assert.rejects(other, { name: "AbortError" });
  assert.equal(asked(), 0, "nothing is asked before the model is ready");
  worker.report({ ready: { context_tokens: 512 } });
  while (asked() === 0) await soon();
  worker.report({ text: "yes" });
  worker.report({ ended: { finish_reason: "stop", prompt_tokens: 1, completion_tokens: 1, tokens_per_s: 1 } });
  await answer;
  assert.equal(asked(), 1);
  assert.equal(chunks[0].choices[0].delta.content, "yes");

  device.end();
  device.begin();
  const late = device.answer({ messages: [] }, { signal: new AbortController().signal, onChunk: () => {} });
  ScriptedWorker.last.report({ failed: { code: "no_gpu", message: "" } });
  await assert.rejects(late, { code: "device_no_gpu" });
});

test("QuestionIsSentAsSoonAsTheModelIsOpen", async () => {
  const device = deviceWith(ScriptedWorker);
  const worker = await begun(device);
  worker.report({ looked: { name: "m", bytes: 9, missing_bytes: 0 } });
  const answer = device.answer({ messages: [] }, { signal: new AbortController().signal, onChunk: () => {} });
  worker.report({ opened: { num_layers: 4 } });
  while (worker.count("GET_TOKEN") === 0) await soon();
  worker.report({ early: { layers: 3, num_layers: 4, tokens: 9 } });
  assert.equal(device.early.layers, 3);
  worker.report({ fetched: { done_bytes: 8, all_bytes: 9 } });
  assert.equal(device.early.layers, 3, "progress of the download hides nothing");
  assert.equal(device.ready, false);
  worker.report({ ready: { context_tokens: 512 } });
  assert.equal(device.early, null);
  worker.report({ ended: { finish_reason: "stop", prompt_tokens: 9, completion_tokens: 1, cached_tokens: 0 } });
  assert.equal(await answer, true);

  // A device that begins anew is not open.
  device.end();
  device.begin();
  assert.equal(device.is_open, false);
});

test("LostGpuIsOpenedAgainAFewTimes", async (t) => {
  const real = globalThis.setTimeout, timers = [];
  t.after(() => { globalThis.setTimeout = real; });
  globalThis.setTimeout = (run, ms) => timers.push({ run, ms });
  const device = deviceWith(ScriptedWorker);
  const load = () => {
    ScriptedWorker.last.report({ looked: { name: "m", bytes: 9, missing_bytes: 0 } });
    ScriptedWorker.last.report({ ready: { context_tokens: 512 } });
  };
  const lose = () => ScriptedWorker.last.report({ failed: { code: "device_lost", message: "gone" } });
  const words = [];
  const onChunk = ({ choices }) => words.push(choices[0].delta.content ?? "");
  const how = { signal: new AbortController().signal, onChunk };

  const worker = await begun(device);
  load();
  const answer = device.answer({ messages: [] }, how);
  await soon();
  ScriptedWorker.last.report({ text: "yes" });
  lose();                                     // in the answer, then twice while the model is loaded again
  for (const wait of [250, 500, 1000]) {
    assert.equal(device.state.phase, "looking");
    const before = worker.count("START_SESSION");
    assert.equal(timers.at(-1).ms, wait);
    timers.at(-1).run();
    assert.equal(worker.count("START_SESSION"), before + 1);
    if (wait < 1000) lose();
  }
  load();
  await soon();
  ScriptedWorker.last.report({ text: "yes, and" });
  ScriptedWorker.last.report({ ended: { finish_reason: "stop", prompt_tokens: 1, completion_tokens: 1 } });
  await answer;
  assert.deepEqual(words, ["yes", ", and", ""]);

  // A GPU that is lost again and again is given up; a loss without a question is mended, too.
  for (let i = 0; i < 4; i += 1) {
    lose();
    assert.equal(device.state.phase, "looking");
    timers.at(-1).run();
  }
  lose();
  assert.equal(device.state.phase, "failed");
  await assert.rejects(device.answer({ messages: [] }, how), { code: "device_device_lost" });
});

test("PillNamesThisDeviceBeforeItIsReady", () => {
  for (const [phase, kind, words] of [["off", "warn", /not ready/], ["looking", "warn", /loading/],
    ["asking", "warn", /not ready/], ["fetching", "warn", /loading/], ["warming", "warn", /loading/],
    ["ready", "good", /^this device$/], ["failed", "warn", /not ready/]]) {
    const { kind: found, text, welcome } = placeWords({ phase });
    assert.equal(found, kind, phase);
    assert.match(text, words, phase);
    assert.match(welcome, /does not leave it|nothing that you write goes to the hub/, phase);
  }
});

test("PillNamesBothPlacesWhereEitherAnswers", () => {
  const hub = poolWords({ status: "ok", workers: 2 });
  for (const phase of ["off", "looking", "asking", "fetching", "warming", "failed"]) {
    const { kind, text, short, welcome } = bothWords("either", { phase }, hub);
    assert.equal(kind, hub.kind, phase);
    const is_coming = ["looking", "fetching", "warming"].includes(phase);
    assert.match(text, is_coming ? /^the hub.*loads$/ : /^the hub.*not ready$/);
    assert.equal(short, "hub", phase);
    assert.match(welcome, /the hub answers, so what you write goes to it/, phase);
  }
  const away = bothWords("either", { phase: "ready" }, poolWords(null), true);
  assert.equal(away.kind, "good", "this device answers also without the hub");
  assert.match(away.text, /^this device; the hub is away$/);
  assert.match(bannerWords(null, 0, true).text, /this device answers alone/);
  assert.doesNotMatch(bannerWords(null, 0).text, /this device/);
  const { kind, text, welcome } = bothWords("either", { phase: "ready" }, hub, false);
  assert.equal(kind, "good");
  assert.equal(text, "this device or the hub");
  assert.match(welcome, /may go to the hub/);
  const asking = { phase: "asking", bytes: 2e9, missing_bytes: 2e9 };
  assert.match(deviceWords(asking), /stays on this device/);
  assert.doesNotMatch(deviceWords(asking, "either"), /stays on this device/);
});

test("ADraftIsOfferedTheHubsAnswer", () => {
  const [draft, better] = pairUp([reply("a", "Quick."), { ...newAnswer("b", 0), rev: 1 }]);
  assert.equal(betterOf([draft, better], draft), better);
  assert.equal(betterOf([draft, better], better), undefined);
  assert.equal(betterOf([draft, reply("c", "Another.")], draft), undefined);

  assert.deepEqual(offerWords(better, true).action, "");
  assert.match(offerWords(better, true).text, /hub writes a better one/);
  assert.equal(stateOf(better, false), "left", "its page was closed");
  assert.equal(offerWords(better, false).action, "retry");
  better.end = { reason: "failed", words: "The hub cannot be reached." };
  const failed = offerWords(better, false);
  assert.deepEqual([failed.kind, failed.action], ["bad", "retry"]);
  assert.match(failed.text, /no better answer\. The hub cannot be reached\./);
  Object.assign(better, { content: "Better.", end: { reason: "length", words: "" } });
  assert.equal(offerWords(better, false).action, "show");

  const conversation = linked({ ...newConversation(0), messages: [question("q", "What?"), draft, better] });
  Object.assign(draft, { parent: "q" });
  Object.assign(better, { parent: "q" });
  assert.deepEqual(messagesFor(conversation, better, "").at(-2), { role: "user", content: "What?" });
  const longer = ({ id, parent, refines = "", ...rest }) => (
    { ...rest, id: id.repeat(24), parent: parent.repeat(24), ...(refines ? { refines: refines.repeat(24) } : {}) });
  const ids = { q: "c", a: "a", b: "b" };
  conversation.messages.forEach((one) => { one.id = ids[one.id]; });
  conversation.messages.slice(1).forEach((one) => { one.parent = ids.q; });
  const [again] = fromJson(toJson([{ ...conversation, messages: conversation.messages.map(longer) }]));
  assert.ok(betterOf(again.messages, again.messages[1]), "an export keeps what refines what");
});

test("PillNamesTheOrderWhereTheHubRefines", () => {
  const hub = poolWords({ status: "ok", workers: 2 });
  const { text, welcome } = bothWords("refine", { phase: "ready" }, hub, false);
  assert.equal(text, "this device, then the hub");
  assert.match(welcome, /goes to the hub, too/);
  assert.equal(bothWords("refine", { phase: "ready" }, poolWords(null), true).text, "this device; the hub is away");
  const asking = { phase: "asking", bytes: 2e9, missing_bytes: 2e9 };
  assert.match(deviceWords(asking, "refine"), /the hub's answer is offered/);
  assert.deepEqual(factsOf({ facts: { place: "drafted", tokens: 8, workers_seen_max: 2 } }), []);
});

test("AHandOffNeedsOneModel", () => {
  const wishFor = (info) => new Places().wish({ key: "", info, health: { status: "ok" }, limit: 0 });
  assert.equal(hasOtherModel({ model: "large" }), false);
  assert.equal(wishFor({ model: "large", device_model: "large" }).hub_hands_off, true);
  assert.equal(wishFor({ model: "large", device_model: "small" }).hub_hands_off, false);
});

test("WishSaysWhichAnswerCountsWhereTheHubIsBetter", () => {
  const wishFor = (info, quality) => new Places().wish({ key: "", info, health: { status: "ok" }, limit: 0, quality });
  assert.equal(wishFor({ model: "large" }, "best").hub_is_better, false);
  const other = wishFor({ model: "large", device_model: "small" }, "best");
  assert.equal(other.hub_is_better, true);
  assert.equal(other.quality, "best");
  assert.equal(settingsOf({ quality: "worst" }).quality, "quickest");
  assert.equal(settingsOf({ quality: "best" }).quality, "best");
});

test("PlacesLearnTheHubsSpeedFromItsOwnAnswersOnly", () => {
  const places = new Places();
  const timings = { prompt_n: 100, prompt_per_second: 900, predicted_n: 50, predicted_per_second: 40 };
  const info = { model: "m", context_tokens: 9 };
  const wish = () => places.wish({ key: "k", info, health: { status: "ok" }, limit: 0 });
  places.learn({ timings }, "device");
  assert.deepEqual(wish().hub, { prompt_tokens_per_s: 0, answer_tokens_per_s: 0 });
  places.learn({ timings: { ...timings, prompt_n: 3, predicted_n: 3 } }, "hub");
  assert.deepEqual(wish().hub, { prompt_tokens_per_s: 0, answer_tokens_per_s: 0 }, "a few tokens say little");
  places.learn({ timings, usage: { completion_tokens: 50 } }, "hub");
  const { words, hub, answer_tokens, hub_answers, hub_context_tokens } = wish();
  assert.deepEqual({ words, hub, answer_tokens, hub_answers, hub_context_tokens }, {
    words: "to_hub", hub: { prompt_tokens_per_s: 900, answer_tokens_per_s: 40 }, answer_tokens: 50, hub_answers: true,
    hub_context_tokens: 9,
  });
  assert.equal(places.wish({ info: {}, health: null, limit: 20 }).answer_tokens, 20);
  assert.equal(places.wish({ info: {}, health: null, limit: 20 }).hub_answers, false);
});

test("QuestionThatTheHubShouldAnswerIsGivenBack", async () => {
  const device = deviceWith(ScriptedWorker);
  const worker = await begun(device);
  worker.report({ looked: { name: "m", bytes: 9, missing_bytes: 0 } });
  worker.report({ ready: { context_tokens: 512 } });
  const placed = [], chunks = [];
  const wish = { words: "to_hub" };
  const how = {
    signal: new AbortController().signal, onChunk: (chunk) => chunks.push(chunk), wish,
    onPlace: ({ placed: where }) => placed.push(where),
  };
  const given_back = device.answer({ messages: [] }, how);
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(worker.posted.at(-1).payload.wish, wish);
  worker.report({ placed: "hub" });
  assert.equal(await given_back, false);
  assert.deepEqual(chunks, []);

  const answered_here = device.answer({ messages: [] }, how);
  await new Promise((done) => setImmediate(done));
  worker.report({ placed: "handed" });
  worker.report({ text: "yes" });
  worker.report({ ended: { finish_reason: "stop", prompt_tokens: 9, completion_tokens: 1, cached_tokens: 8 } });
  assert.equal(await answered_here, true);
  assert.deepEqual(placed, ["hub", "handed"]);
  assert.equal(chunks[0].choices[0].delta.content, "yes");
});

// Its hub would else be asked for words that the user has taken back, perhaps under another choice of places.
test("StoppedQuestionIsPlacedNoMore", async () => {
  const device = deviceWith(ScriptedWorker);
  const worker = await begun(device);
  worker.report({ looked: { name: "m", bytes: 9, missing_bytes: 0 } });
  worker.report({ ready: { context_tokens: 512 } });
  const placed = [], stop = new AbortController();
  const onPlace = ({ placed: where }) => placed.push(where);
  const stopped = device.answer({ messages: [] }, { signal: stop.signal, onChunk: () => {}, wish: {}, onPlace });
  await new Promise((done) => setImmediate(done));
  stop.abort();
  await assert.rejects(stopped, { name: "AbortError" });
  worker.report({ placed: "refined" });
  assert.deepEqual(placed, []);
});

test("ModelLargerThanMemoryIsReportedBeforeTheDownload", () => {
  Object.defineProperty(globalThis, "navigator", { value: { deviceMemory: 8 }, configurable: true });
  const asking = (size) => deviceWords({ phase: "asking", bytes: size, missing_bytes: size });
  assert.match(asking(20e9), /The model takes 20 GB\..* more than this device's memory, about 8\.6 GB/);
  assert.doesNotMatch(asking(2e9), /memory/);
});
