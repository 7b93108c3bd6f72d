// The chat page's plain modules: thoughts and answers, the messages that are sent to the model, merging by two tabs,
// and texts.
import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import { afterEach, test } from "node:test";

import {
  findIn, fromJson, fromSession, historyOf, linked, merge, messagesFor, newConversation, pathOf, siblingsOf, titleFrom,
  toJson, toMarkdown,
} from "../../static/js/chat/conversation.js";
import { ThisDevice } from "../../static/js/chat/device.js";
import { Places, hasOtherModel } from "../../static/js/chat/places.js";
import { betterOf, pairUp, stateOf } from "../../static/js/chat/refine.js";
import { splitReasoning } from "../../static/js/chat/reasoning.js";
import {
  formOf, numAnswers, presetsOf, problemOf, samplingOf, settingsOf, withPreset,
} from "../../static/js/chat/settings.js";
import { snippets } from "../../static/js/chat/snippets.js";
import { Turn, Turns, newAnswer } from "../../static/js/chat/turn.js";
import {
  bannerWords, bothWords, deviceWords, endWords, errorWords, factsOf, isFinal, offerWords, placeWords, poolWords,
  thoughtWords,
} from "../../static/js/chat/words.js";
import { setLanguage } from "../../static/js/language.js";

globalThis.crypto ??= webcrypto;      // Node 18 has no global crypto; browsers have
afterEach(() => setLanguage("en"));

const say = (content) => ({ choices: [{ index: 0, delta: { content } }] });
const think = (reasoning_content) => ({ choices: [{ index: 0, delta: { reasoning_content } }] });
const finish = (finish_reason) => ({ choices: [{ index: 0, delta: {}, finish_reason }] });

// Makes a complete answer, with one chunk per 100 ms.
function answered(chunks, { message = newAnswer("a", 0), reason = "", ...how } = {}) {
  const turn = new Turn(message, { now_ms: 0, workers: how.workers ?? null });
  chunks.forEach((chunk, i) => turn.add(chunk, 100 * (i + 1)));
  turn.end(reason, { now_ms: 100 * (chunks.length + 1), ...how });
  return message;
}

const question = (id, content) => ({ id, role: "user", content, at: 0, rev: 1 });
const reply = (id, content, more = {}) => ({
  ...newAnswer(id, 0), content, rev: 1, end: { reason: "stop", words: "" }, ...more,
});

// ---- reasoning

test("ThoughtsAreSeparatedFromTheAnswer", () => {
  const whole = "<think>\nI wonder.\n</think>\n\nYes.";
  assert.deepEqual(splitReasoning(whole), { reasoning: "I wonder.", answer: "Yes.", thinking: false });
});

test("PartialTagIsNeverShown", () => {
  const whole = "<think>\nIs 1 < 2?\n</think>\n\nIt is: 1 < 2.";
  for (let size = 0; size <= whole.length; size += 1) {
    const { reasoning, answer } = splitReasoning(whole.slice(0, size));
    assert.ok("Is 1 < 2?".startsWith(reasoning.trim()), `${size}: ${JSON.stringify(reasoning)}`);
    assert.ok("It is: 1 < 2.".startsWith(answer), `${size}: ${JSON.stringify(answer)}`);
  }
});

test("AnswerThatMentionsTagsStaysWhole", () => {
  for (const text of ["Use <think> to think.", "<thinking>no</thinking>", "<b>bold</b>", "  plain"]) {
    assert.equal(splitReasoning(text).answer, text);
  }
});

test("ThoughtsComeFromTheServerOrFromTags", () => {
  const told = answered([think("I wonder. "), think("Yes."), say("Here"), say(" it is."), finish("stop")]);
  const tagged = answered([say("<think>I wonder. Yes."), say("</think>"), say("Here"), say(" it is."), finish("stop")]);
  for (const message of [told, tagged]) {
    assert.equal(message.reasoning, "I wonder. Yes.");
    assert.equal(message.content, "Here it is.");
    assert.equal(message.thinking, false);
    assert.ok(message.reasoning_ms > 0);
  }
  assert.equal(thoughtWords(told), "Thought for 0.2 s");
});

test("TagsAreTextWhenTheServerSendsThoughts", () => {
  const message = answered([think("Hm."), say("<think> is a tag.")]);
  assert.equal(message.content, "<think> is a tag.");
});

// ---- messages that are sent to the model

test("ThoughtsAreNotSentAsHistory", () => {
  const conversation = newConversation(0);
  const next = newAnswer("d", 0);
  const past = [question("a", "One?"), reply("b", "Two.", { reasoning: "secret" })];
  conversation.messages.push(...past, question("c", "Three?"), next);
  const sent = messagesFor(linked(conversation), next, "Be brief.");
  assert.deepEqual(sent, [
    { role: "system", content: "Be brief." }, { role: "user", content: "One?" }, { role: "assistant", content: "Two." },
    { role: "user", content: "Three?" },
  ]);
});

test("UnansweredQuestionIsNotSentAsHistory", () => {
  const messages = [question("a", "Lost?"), reply("b", ""), question("c", "Kept?"), reply("d", "Yes.")];
  assert.deepEqual(historyOf(messages).map(({ content }) => content), ["Kept?", "Yes."]);
});

test("ContinuationRequestEndsWithThePartialAnswer", () => {
  const conversation = newConversation(0);
  const cut = reply("b", "Once upon a", { reasoning: "A tale." });
  conversation.messages.push(question("a", "A story?"), cut);
  assert.deepEqual(messagesFor(linked(conversation), cut, ""), [
    { role: "user", content: "A story?" },
    { role: "assistant", content: "Once upon a", reasoning_content: "A tale." },
  ]);
});

test("ContinuedAnswerGrowsInItsMessage", () => {
  const usage = (completion_tokens) => ({ choices: [], usage: { completion_tokens, total_tokens: 50 } });
  const message = answered([say("Once upon"), finish("length"), usage(2)], { limit: 2, context_tokens: 1000 });
  assert.equal(message.end.reason, "length");
  answered([say(" a time"), say("."), finish("stop"), usage(3)], { message });
  assert.equal(message.content, "Once upon a time.");
  assert.equal(message.facts.tokens, 5);
  assert.equal(message.end.reason, "stop");
});

test("ContinuedThoughtStaysAThought", () => {
  const message = answered([think("I wonder")], { reason: "stopped" });
  assert.equal(endWords(message).action, "continue");
  answered([think(" no more."), say("Done."), finish("stop")], { message });
  assert.equal(message.reasoning, "I wonder no more.");
  assert.equal(message.content, "Done.");
});

// ---- how answers end

const called = (index, id, name, more) => (
  { choices: [{ index: 0, delta: { tool_calls: [{ index, id, function: { name, arguments: more } }] } }] });

test("ToolCallsGrowInPiecesAndAreNotText", () => {
  const message = answered([
    think("hm"), called(0, "c1", "add", ""), called(0, undefined, undefined, '{"a": 1,'),
    called(0, undefined, undefined, ' "b": 2}'), called(1, "c2", "now", "{}"), finish("tool_calls"),
  ]);
  assert.deepEqual(message.calls, [
    { id: "c1", name: "add", arguments: '{"a": 1, "b": 2}', result: null },
    { id: "c2", name: "now", arguments: "{}", result: null },
  ]);
  assert.equal(message.content, "");
  assert.equal(message.thinking, false);
  assert.equal(endWords(message), null);
  const cut = answered([called(0, "c1", "add", "{}"), finish("length")], { limit: 3 });
  assert.equal(endWords(cut).action, "", "half of the calls cannot be continued");
});

test("AnswersOfOneStreamGrowAndEndSeparately", () => {
  const messages = [newAnswer("a", 0), newAnswer("b", 0), newAnswer("c", 0)];
  const turns = new Turns(messages, { now_ms: 0, workers: 2 });
  const piece = (index, content) => ({ choices: [{ index, delta: { content } }] });
  const chunks = [piece(1, "Two"), piece(0, "One"), piece(1, " words"), piece(2, "Th"),
    { choices: [{ index: 1, delta: {}, finish_reason: "stop" }] },
    { choices: [{ index: 0, delta: {}, finish_reason: "length" }] }];
  const grown = chunks.map((chunk, i) => turns.add(chunk, 100 * (i + 1)).map(({ id }) => id).join());
  assert.deepEqual(grown, ["b", "a", "b", "c", "b", "a"]);
  turns.add({ choices: [{ index: 9, delta: { content: "nobody's" } }] }, 650);
  turns.add({ choices: [], usage: { prompt_tokens: 5, completion_tokens: 4, total_tokens: 9 },
    timings: { predicted_ms: 50, predicted_per_second: 80 }, moex: { workers: 2, verified: 3 } }, 700);

  turns.end("stopped", { now_ms: 800, limit: 1, context_tokens: 512 });
  assert.deepEqual(messages.map(({ content }) => content), ["One", "Two words", "Th"]);
  assert.deepEqual(messages.map(({ end }) => end.reason), ["length", "stop", "stopped"]);
  assert.deepEqual(messages.map(({ facts }) => facts.tokens), [1, 2, 1], "each has its own");
  assert.equal(messages[1].facts.tokens_per_s, 20, "its own tokens, over the time of all answers");
  assert.deepEqual(messages.map(({ facts }) => facts.workers), [2, 2, 2]);
});

test("ToolCallsAreSentToTheModelWithTheirResults", () => {
  const calls = [{ id: "c1", name: "add", arguments: "{}", result: null }];
  const first = { ...reply("a", "", { calls }), parent: "q" };
  const next = { ...newAnswer("b", 0), parent: "a" };
  const messages = [{ ...question("q", "1 + 2?"), parent: "" }, first, next];
  const conversation = linked({ ...newConversation(0), messages });
  assert.deepEqual(messagesFor(conversation, next, ""), [{ role: "user", content: "1 + 2?" }]);
  assert.deepEqual(historyOf([question("q", "1 + 2?"), first]), []);

  calls[0].result = "3";
  const told = [
    { role: "user", content: "1 + 2?" },
    { role: "assistant", content: null,
      tool_calls: [{ id: "c1", type: "function", function: { name: "add", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "c1", content: "3" },
  ];
  assert.deepEqual(messagesFor(conversation, next, ""), told);
  assert.deepEqual(historyOf([question("q", "1 + 2?"), first, reply("b", "Three.")]),
    [...told, { role: "assistant", content: "Three." }]);
  assert.match(toMarkdown(conversation), /Calls add\n\n```json\n\{\}\n```\n\nResult:\n\n```\n3\n```/);
  const [back] = fromJson(toJson([conversation]));
  assert.deepEqual(back.messages[1].calls, calls);
});

test("EarlyEndIsExplainedAndOffersAnAction", () => {
  const ends = [
    [answered([say("a"), finish("length")], { limit: 16, context_tokens: 99 }), /that you set, 16 tokens/, "continue"],
    [answered([say("a")], { reason: "stopped" }), /^You stopped this answer\.$/, "continue"],
    [answered([], { reason: "stopped" }), /before the first word/, "retry"],
    [answered([say("a")], { reason: "failed", words: "The line broke." }), /^The line broke\.$/, "continue"],
    [answered([], { reason: "failed", words: "Nobody is here." }), /^Nobody is here\.$/, "retry"],
    [{ ...answered([say("a")]), end: null }, /The page was closed/, "continue"],
  ];
  for (const [message, words, action] of ends) {
    assert.match(endWords(message).text, words);
    assert.equal(endWords(message).action, action);
  }
  assert.equal(endWords(answered([say("a"), finish("stop")])), null);
});

test("FullContextCannotBeContinued", () => {
  const full = { choices: [], usage: { completion_tokens: 1, total_tokens: 1024 } };
  for (const limit of [null, 16]) {
    const message = answered([say("a"), finish("length"), full], { limit, context_tokens: 1024 });
    assert.match(endWords(message).text, /context is full \(1,024 tokens/);
    assert.equal(endWords(message).action, "");
  }
  const before_the_hub_was_asked = answered([say("a"), finish("length"), full], { limit: null });
  assert.match(endWords(before_the_hub_was_asked).text, /context is full\. Continue/);
});

// ---- which workers computed an answer

test("StoppedAnswerNamesItsContributorsIfKnown", () => {
  const of = (workers) => factsOf(answered([say("a"), say("b")], { reason: "stopped", workers })).join("; ");
  assert.match(of(0), /answered by the hub itself/);
  assert.match(of(1), /1 contributor was serving/);
  assert.match(of(3), /3 contributors were serving/);
  assert.doesNotMatch(of(null), /contributor|hub/);
});

test("CompleteAnswerShowsTheHubsFigures", () => {
  const moex = { choices: [], moex: { workers: 2, calls_local: 0 }, timings: { predicted_per_second: 12.5 } };
  const facts = factsOf(answered([say("a"), say("b"), finish("stop"), moex], { workers: 5 }));
  assert.deepEqual(facts, ["12.5 tokens/s", "first token after 100 ms", "answered by 2 contributors"]);
  assert.ok(!facts.join().includes("verified"));
});

test("AnswerShowsHowMuchWasChecked", () => {
  const words = (checks) => factsOf(answered([say("a"), say("b"), finish("stop"),
    { choices: [], moex: { workers: 2, calls_local: 0, ...checks } }], { workers: 2 })).join("; ");
  assert.match(words({ verified: 96, proven: 0, unchecked: 0 }), /all of the answer checked by the hub/);
  assert.match(words({ verified: 24, proven: 72, unchecked: 0 }), /25 % of the answer checked by the hub/);
  assert.match(words({ verified: 0, proven: 96, unchecked: 0 }), /from contributors with a good record/);
  assert.match(words({ verified: 10, proven: 0, unchecked: 86 }), /90 % of the answer unchecked/);
  assert.match(words({ verified: 0, proven: 96, unchecked: 0, doubted: 1 }), /1 contributor gave false answers/);
  assert.doesNotMatch(words({ verified: 0, proven: 0, unchecked: 0 }), /of the answer|record/);
  assert.match(words({ experts: "early:1", perplexity_excess: 0.1226 }), /early:1 .*lossy: perplexity 12.3 % higher/);
  assert.match(words({ experts: "estimator+weights", perplexity_excess: null }),
    /estimator\+weights .*lossy: .*not measured/);
  assert.doesNotMatch(words({ experts: "exact" }), /lossy/);
});

// ---- settings

test("SeedAbove2To53IsRefused", () => {
  for (const good of ["", "0", " 42 ", "9007199254740991"]) assert.equal(problemOf("seed", good), "");
  for (const bad of ["9007199254740992", "99999999999999999999", "-1", "1.5", "0x10", "many"]) {
    assert.match(problemOf("seed", bad), /from 0 to 9007199254740991/, bad);
  }
});

test("LongestAnswerDefaultsToTheContext", () => {
  const fields = (max_tokens) => samplingOf({ ...settingsOf(null), max_tokens });
  assert.ok(!("max_tokens" in fields("")));
  assert.equal(fields("4096").max_tokens, 4096);      // the hub limits max_tokens to the context
  assert.notEqual(problemOf("max_tokens", "0"), "");
  assert.equal(settingsOf({ max_tokens: 256, seed: 7, temperature: 9 }).max_tokens, "");
  assert.equal(settingsOf({ temperature: 9 }).temperature, 0.8);
});

test("PlaceDefaultsToTheHub", () => {
  assert.equal(settingsOf(null).place, "hub");
  assert.equal(settingsOf({ place: "moon" }).place, "hub");
  assert.equal(settingsOf({ place: "device" }).place, "device");
  const facts = { place: "device", tokens: 9, tokens_per_s: 3, workers_seen_min: 2, workers_seen_max: 2 };
  assert.deepEqual(factsOf({ facts }), ["3.0 tokens/s"], "no contributor had a part in it");
});

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

test("ModelLargerThanMemoryIsReportedBeforeTheDownload", () => {
  Object.defineProperty(globalThis, "navigator", { value: { deviceMemory: 8 }, configurable: true });
  const asking = (size) => deviceWords({ phase: "asking", bytes: size, missing_bytes: size });
  assert.match(asking(20e9), /The model takes 20 GB\..* more than this device's memory, about 8\.6 GB/);
  assert.doesNotMatch(asking(2e9), /memory/);
});

test("EmptyFieldsUseTheModelsDefaults", () => {
  assert.deepEqual(samplingOf(settingsOf(null)), { temperature: 0.8, top_p: 0.95 });
  const set = { ...settingsOf(null), top_k: " 40 ", min_p: "0.05", repetition_penalty: "1.1", presence_penalty: "-2" };
  assert.deepEqual(
    samplingOf(settingsOf(JSON.parse(JSON.stringify(set)))),
    { temperature: 0.8, top_p: 0.95, top_k: 40, min_p: 0.05, repetition_penalty: 1.1, presence_penalty: -2 },
  );
  for (const [name, bad] of [["top_k", "1.5"], ["min_p", "1.01"], ["presence_penalty", "-2.1"], ["min_p", "1e-1"],
    ["frequency_penalty", "x"], ["repetition_penalty", "0"]]) {
    assert.notEqual(problemOf(name, bad), "", `${name} ${bad}`);
  }
});

test("QuestionGetsOneAnswerByDefault", () => {
  const asked = (n) => numAnswers(settingsOf({ n }));
  assert.deepEqual([undefined, "", "1", " 3 ", "8", 2].map(asked), [1, 1, 1, 3, 8, 2]);
  for (const bad of ["0", "9", "1.5", "-1", "many"]) {
    assert.notEqual(problemOf("n", bad), "", bad);
    assert.equal(asked(bad), 1, bad);
  }
  assert.ok(!("n" in samplingOf(settingsOf({ n: "3" }))), "a continuation asks for one answer");
});

test("FormIsSentOnlyWhenItsFieldsAreValid", () => {
  const schema = { type: "object" };
  const settings = settingsOf({
    stop_words: "END\n\n###", schema: JSON.stringify(schema), tools: '[{"name": "add"}]', tool_choice: "required" });
  assert.deepEqual(formOf(settings), {
    stop: ["END", "###"], response_format: { type: "json_schema", json_schema: { name: "answer", schema } },
    tools: [{ type: "function", function: { name: "add" } }], tool_choice: "required",
  });
  assert.deepEqual(formOf(settingsOf({})), {});
  assert.deepEqual(formOf(settingsOf({ tool_choice: "required" })), {}, "a choice needs tools");

  for (const [name, text] of [["stop_words", "1\n2\n3\n4\n5"], ["schema", "{"], ["schema", "[]"], ["tools", "{}"],
    ["tools", "[]"], ["tools", '[{"name": ""}]'], ["tools", "[null]"]]) {
    assert.notEqual(problemOf(name, text), "", `${name}: ${text}`);
  }
  for (const name of ["stop_words", "schema", "tools"]) assert.equal(problemOf(name, " "), "");
  assert.equal(problemOf("tools", '[{"type": "function", "function": {"name": "add"}}]'), "");
});

test("BiasEffortAndGrammarAreSentAsTheApiTakesThem", () => {
  const pairs = '[[" sea", 4], [7, false]]';
  const sampling = samplingOf(settingsOf({ logit_bias: pairs, reasoning_effort: "low" }));
  assert.deepEqual(sampling.logit_bias, [[" sea", 4], [7, false]]);
  assert.equal(sampling.reasoning_effort, "low");
  assert.ok(!("logit_bias" in samplingOf(settingsOf({ logit_bias: '{"": 1}' }))), "what does not hold is no field");
  assert.equal(settingsOf({ reasoning_effort: "very" }).reasoning_effort, "");

  const grammar = 'root ::= "yes" | "no"\n';
  assert.deepEqual(formOf(settingsOf({ grammar })), { grammar });
  assert.ok(!("grammar" in formOf(settingsOf({ grammar, schema: "{}" }))), "a schema counts before it");

  for (const [name, text] of [["logit_bias", "sea: 4"], ["logit_bias", "[]"], ["logit_bias", '{"sea": 101}'],
    ["logit_bias", '[["sea"]]'], ["logit_bias", '[["", 1]]'], ["logit_bias", "[[-1, 1]]"], ["logit_bias", "3"],
    ["logit_bias", '{"sea": true}'], ["grammar", "yes or no"]]) {
    assert.notEqual(problemOf(name, text), "", `${name}: ${text}`);
  }
  for (const name of ["logit_bias", "grammar"]) assert.equal(problemOf(name, " "), "");
  assert.equal(problemOf("logit_bias", '{" sea": -100}'), "");
});

test("OwnSystemPromptIsKeptOnce", () => {
  const long = "Speak like a sailor who has seen every sea there is.\nNever lie.";
  const own = withPreset([], ` ${long} `);
  assert.deepEqual(own, [{ name: "Speak like a sailor who has see…", text: long }]);
  assert.equal(withPreset(own, long), own);
  assert.equal(withPreset(own, "  "), own);
  assert.deepEqual(presetsOf([...own, null, { name: 3 }, { name: "", text: "x" }]), own);
  assert.deepEqual(presetsOf("x"), []);
});

// ---- conversations

test("TwoTabsLoseNoMessageOfAConversation", () => {
  const base = newConversation(0);
  base.messages.push(question("a", "One?"), reply("b", "Tw", { rev: 1 }));
  const theirs = [question("x", "Theirs?"), reply("y", "Theirs.")];
  const stored = { ...base, title: "Renamed", renamed_at: 9, messages: [...base.messages, ...theirs] };
  const ours = [reply("b", "Two.", { rev: 3 }), question("c", "Mine?"), reply("d", "Mine.")];
  const mine = { ...base, messages: [base.messages[0], ...ours] };
  const both = merge(stored, mine);
  assert.deepEqual(both.messages.map(({ id }) => id), ["a", "b", "x", "y", "c", "d"]);
  assert.equal(both.messages[1].content, "Two.");
  assert.equal(both.title, "Renamed");
  assert.equal(merge(null, mine), mine);
});

test("ConversationOfAnOlderPageIsAdopted", () => {
  const kept = [
    { role: "user", content: "Hello there" }, { role: "assistant", content: "<think>hm</think>Hi.", facts: ["x"] },
  ];
  const conversation = fromSession(kept, 5);
  assert.equal(conversation.title, "Hello there");
  assert.equal(conversation.messages[1].content, "Hi.");
  assert.equal(conversation.messages[1].reasoning, "hm");
  for (const nothing of [null, [], {}, [{ role: "system", content: 3 }]]) assert.equal(fromSession(nothing), null);
});

test("TitleIsTheBeginningOfTheFirstQuestion", () => {
  assert.equal(titleFrom("  Tell me\na story"), "Tell me");
  const long = titleFrom("word ".repeat(40));
  assert.ok(long.length <= 61 && long.endsWith("word…"), long);
  assert.equal(titleFrom("   "), "New chat");
});

test("SearchFindsWordsInTitlesAndMessages", () => {
  const conversation = { ...newConversation(0), title: "The Sea" };
  conversation.messages.push(question("a", "x".repeat(100) + " lighthouse " + "y".repeat(100)));
  assert.equal(findIn(conversation, ""), "");
  assert.equal(findIn(conversation, "sea"), "");
  assert.match(findIn(conversation, "LIGHTHOUSE"), /^…x+ lighthouse y+$/);
  assert.equal(findIn(conversation, "whale"), null);
});

test("ConversationIsExportedCompletely", () => {
  const conversation = { ...newConversation(0), title: "Sea" };
  conversation.messages.push(question("a", "Why?"), reply("b", "**Because.**", { reasoning: "Hm." }));
  const markdown = toMarkdown(linked(conversation));
  for (const part of ["# Sea", "Why?", "**Because.**", "<details><summary>Reasoning</summary>\n\nHm."]) {
    assert.ok(markdown.includes(part), part);
  }
  assert.deepEqual(JSON.parse(toJson([conversation])).conversations, [conversation]);
});

// Messages a -> b -> c -> d. Another answer e is beside b, and another question f, which has no answer, is beside c.
function branched() {
  const conversation = linked({
    ...newConversation(0), messages: [question("a", "A?"), reply("b", "B."), question("c", "C?"), reply("d", "D.")],
  });
  conversation.messages.push({ ...reply("e", "E."), parent: "a" }, { ...question("f", "F?"), parent: "b" });
  return conversation;
}
const ids = (messages) => messages.map(({ id }) => id).join("");

test("ChosenOrYoungestAnswerIsShown", () => {
  const conversation = branched();
  assert.equal(ids(pathOf(conversation)), "ae");
  conversation.chosen = { a: "b" };
  assert.equal(ids(pathOf(conversation)), "abf");
  conversation.chosen = { a: "b", b: "c" };
  assert.equal(ids(pathOf(conversation)), "abcd");
  conversation.chosen = { a: "gone" };
  assert.equal(ids(pathOf(conversation)), "ae");
  assert.equal(ids(siblingsOf(conversation, conversation.messages[2])), "cf");
});

test("ModelReceivesOnlyItsOwnBranch", () => {
  const conversation = branched();
  const [, , , old, other] = conversation.messages;
  const contents = (message) => (
    messagesFor(conversation, { ...message, content: "" }, "").map(({ content }) => content));
  assert.deepEqual(contents(old), ["A?", "B.", "C?"]);
  assert.deepEqual(contents(other), ["A?"]);
});

test("TwoTabsAnsweringOneQuestionMakeTwoBranches", () => {
  const stored = branched();
  const mine = branched();
  mine.messages.push({ ...reply("m", "Mine."), parent: "c" });
  mine.chosen = { c: "m" };
  stored.messages.push({ ...reply("s", "Stored."), parent: "c" });
  stored.chosen = { c: "s", a: "b", b: "c" };
  assert.equal(ids(pathOf(merge(stored, mine))), "abcm");
});

test("ExportedConversationIsImportedCompletely", () => {
  const ours = { ...branched(), title: "Sea", chosen: {} };
  const long = (id) => id.charCodeAt(0).toString(16).padStart(24, "0");
  for (const message of ours.messages) {
    message.id = long(message.id);
    if (message.parent) message.parent = long(message.parent);
  }
  const [back] = fromJson(toJson([ours]));
  assert.deepEqual(back, ours);
});

test("ForeignFileIsRefusedWithASentence", () => {
  const file = (conversations) => JSON.stringify({ format: "moex-chat-1", conversations });
  for (const text of ["", "{", "[]", "null", '{"format": "other", "conversations": []}']) {
    assert.throws(() => fromJson(text), /contains no exported conversations/);
  }
  for (const none of [[], [null], [{}], [{ messages: [null, { role: "system", content: "x" }] }]]) {
    assert.throws(() => fromJson(file(none)), /no conversation that can be read/);
  }
  const messages = [{ role: "user", content: "Q", id: "<b>" }, { role: "assistant", content: "A", facts: { x: {} } }];
  const [one] = fromJson(file([{ id: 7, messages, chosen: { x: 5 } }]), 3);
  assert.match(one.id, /^[0-9a-f]{24}$/);
  assert.equal(one.title, "Q");
  assert.equal(ids(pathOf(one)).length, 48, "question and answer are linked");
  assert.deepEqual([one.chosen, one.messages[1].facts, one.updated_at], [{}, {}, 3]);
});

// ---- texts

test("GreetingAgreesWithThePill", () => {
  const hub_only = { status: "ok", workers: 0, units: 8, covered: 8 };
  assert.equal(poolWords(hub_only).text, "hub only");
  assert.match(poolWords(hub_only).welcome, /the hub computes the answers itself/);
  assert.doesNotMatch(poolWords(hub_only).welcome, /disk/);
  const { welcome } = poolWords({ ...hub_only, prompts_kept_hours: 24 });
  assert.match(welcome, /keeps questions and answers .* 24 h at most/);
  const lent = { status: "ok", workers: 2, units: 8, covered: 8 };
  assert.equal(poolWords(lent).text, "2 contributors");
  assert.match(poolWords(lent).welcome, /^2 people lend a browser tab/);
  const empty = { status: "uncovered", workers: 0, units: 8, covered: 0 };
  assert.equal(poolWords(empty).text, "nobody here");
  assert.match(poolWords(empty).welcome, /nobody has joined yet/);
  assert.match(bannerWords(empty, 503).text, /^No contributor holds 8 of the model's 8 experts/);
  assert.equal(bannerWords(hub_only, 200), null);
  assert.equal(poolWords(null).text, "hub offline");
  const locked = poolWords(hub_only, true);
  assert.deepEqual([locked.kind, locked.text], ["warn", "API key needed"]);
  assert.match(locked.welcome, /only with an API key/);
  assert.equal(poolWords(null, true).text, "hub offline");
});

test("TooLongQuestionOffersNoFurtherTry", () => {
  assert.equal(isFinal({ status: 400, code: "context_length_exceeded" }), true);
  assert.equal(isFinal({ status: 413, code: "body_too_large" }), true);
  assert.equal(isFinal({ status: 503, code: "unavailable" }), false);
  const empty = { content: "", reasoning: "", calls: [] };
  const ended = (end) => endWords({ ...empty, end: { reason: "failed", words: "No.", ...end } });
  assert.equal(ended({}).action, "retry");
  assert.equal(ended({ is_final: true }).action, "");
});

test("ErrorsAreSentencesForTheUser", () => {
  const message = "no worker holds expert 0 of layer 0, and local fallback is off";
  const inside = { status: 503, code: "unavailable", message };
  assert.match(errorWords(inside), /too few are connected/);
  assert.doesNotMatch(errorWords(inside), /expert 0|layer|fallback/);
  assert.match(errorWords({ status: 400, code: "context_length_exceeded", message: "" }), /no longer fits/);
  assert.match(errorWords({ status: 429, code: "queue_full", message: "" }), /Too many people/);
  assert.match(errorWords({ status: 401, code: "invalid_api_key", message: "" }), /API key/);
  assert.equal(errorWords({ status: 400, code: "invalid_value", message: "Say it." }), "Say it.");
});

test("SnippetsNameTheHubTheModelAndTheKey", () => {
  for (const [kind, make] of Object.entries(snippets)) {
    const text = make({ root: "https://hub.example/", model: "some-model", needs_key: true });
    const parts = ["https://hub.example", "YOUR_KEY"];
    if (kind !== "claude-code") parts.push("https://hub.example/v1");   // it adds the path itself
    if (kind !== "open-webui") parts.push("some-model");                // it asks for the list of models
    for (const part of parts) assert.ok(text.includes(part), text);
    assert.ok(!make({ root: "x/", model: "y", needs_key: false }).includes("YOUR_KEY"));
  }
});
