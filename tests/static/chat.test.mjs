// The chat page's plain modules: thoughts and answers, the messages that are sent to the model, settings, and texts.
import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import { afterEach, test } from "node:test";

import {
  fromJson, historyOf, linked, messagesFor, newConversation, toJson, toMarkdown,
} from "../../static/js/chat/conversation.js";
import { splitReasoning } from "../../static/js/chat/reasoning.js";
import {
  formOf, numAnswers, presetsOf, problemOf, samplingOf, settingsOf, withPreset,
} from "../../static/js/chat/settings.js";
import { snippets } from "../../static/js/chat/snippets.js";
import { Turns, newAnswer } from "../../static/js/chat/turn.js";
import {
  bannerWords, endWords, errorWords, factsOf, isFinal, poolWords, thoughtWords,
} from "../../static/js/chat/words.js";
import { setLanguage } from "../../static/js/language.js";
import { say, think, finish, answered, question, reply } from "./chat_messages.mjs";

globalThis.crypto ??= webcrypto;      // Node 18 has no global crypto; browsers have
afterEach(() => setLanguage("en"));

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
