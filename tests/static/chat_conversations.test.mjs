// The chat page's conversations: merging by two tabs, branches, search, export and import.
import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import { afterEach, test } from "node:test";

import {
  findIn, fromJson, fromSession, linked, merge, messagesFor, newConversation, pathOf, siblingsOf, titleFrom, toJson,
  toMarkdown,
} from "../../static/js/chat/conversation.js";
import { setLanguage } from "../../static/js/language.js";
import { question, reply } from "./chat_messages.mjs";

globalThis.crypto ??= webcrypto;      // Node 18 has no global crypto; browsers have
afterEach(() => setLanguage("en"));

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
