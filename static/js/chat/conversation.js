// Conversations as plain data: how they begin and branch, which messages are sent to the model, how two tabs' copies
// are merged, how they are exported to files and imported. The module is pure.
//   conversation  {id, title, renamed_at, created_at, updated_at, model, messages, chosen}
//   message       {id, role, content, at, rev, parent}
//   the assistant's also {reasoning, reasoning_ms, end: {reason, words}, facts, calls, is_form}
//   refines       the draft that a better answer is offered for (refine.js)
//   calls         of tools: [{id, name, arguments: as text, result: as text, null until the user enters a result}]
//   is_form       the answer was asked to follow a schema
// Messages are a tree: `parent` is the id of the previous message, "" for a first question. Among the children of a
// message, `chosen` ({parent: child}) names the one that is shown; without an entry the youngest is shown.
// Example: question A has the answers B and C. chosen = {A: B} shows B, chosen = {} shows C.
import { say } from "../words/chat.js";
import { splitReasoning } from "./reasoning.js";

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(now_ms = Date.now()) {
  return {
    id: newId(), title: "", renamed_at: 0, created_at: now_ms, updated_at: now_ms, model: "", messages: [], chosen: {},
  };
}

// Links the messages of a conversation from an older page, which has no branches: each message follows the previous one
// in the list. A message with an unknown parent also follows the previous one.
export function linked(conversation) {
  conversation.chosen ??= {};
  const known = new Set();
  let before = "";
  for (const message of conversation.messages) {
    if (message.parent !== "" && !known.has(message.parent)) message.parent = before;
    known.add(message.id);
    before = message.id;
  }
  return conversation;
}

// Returns all versions of `message` including `message` itself, the oldest first.
export const siblingsOf = (conversation, message) => (
  conversation.messages.filter(({ parent }) => parent === message.parent));

// Returns the shown messages: from the first question along the chosen children to a message without children.
export function pathOf({ messages, chosen }) {
  const children = new Map();
  for (const message of messages) {
    if (children.has(message.parent)) children.get(message.parent).push(message);
    else children.set(message.parent, [message]);
  }
  const path = [];
  for (let at = ""; children.has(at); at = path.at(-1).id) {
    const own = children.get(at);
    path.push(own.find(({ id }) => id === chosen[at]) ?? own.at(-1));
  }
  return path;
}

// Returns the messages from the first question to `message`.
function wayTo({ messages }, message) {
  const known = new Map(messages.map((one) => [one.id, one]));
  const way = [];
  for (let at = message; at; at = known.get(at.parent)) way.unshift(at);
  return way;
}

const title_max = 60;
export function titleFrom(question) {
  const line = question.trim().split("\n")[0].replace(/\s+/g, " ");
  if (line.length <= title_max) return line || say("new_chat");

  const cut = line.slice(0, title_max);
  const space = cut.lastIndexOf(" ");
  return `${(space > 20 ? cut.slice(0, space) : cut).replace(/[\s.,;:!?–-]+$/, "")}…`;
}

export const hasText = (message) => message.content.trim() !== "";
// Returns true if an answer has tool calls and the results of all calls are known: only then are the calls sent to a
// model.
const isServed = ({ calls }) => calls?.length > 0 && calls.every(({ result }) => typeof result === "string");

// Returns an answer in the form that is sent to the model, without its thoughts; nothing for an empty answer.
function toldOf(answer) {
  if (isServed(answer)) {
    return [
      {
        role: "assistant", content: answer.content || null,
        tool_calls: answer.calls.map(({ id, name, arguments: given }) => (
          { id, type: "function", function: { name, arguments: given } })),
      },
      ...answer.calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result })),
    ];
  }
  return hasText(answer) ? [{ role: "assistant", content: answer.content }] : [];
}

// Returns the earlier messages that are sent to the model: questions that were answered, and their answers.
export function historyOf(messages) {
  const out = [];
  messages.forEach((message, i) => {
    if (message.role !== "user") return;
    const next = messages.findIndex(({ role }, at) => at > i && role === "user");
    const told = messages.slice(i + 1, next < 0 ? messages.length : next).flatMap(toldOf);
    if (told.length > 0) out.push({ role: "user", content: message.content }, ...told);
  });
  return out;
}

// Returns the messages of a request for `answer`. If the answer has text already, they request its continuation: the
// last message is then the assistant's, and includes the thoughts before the text.
export function messagesFor(conversation, answer, system) {
  const past = wayTo(conversation, answer).slice(0, -1);
  const asked = past.findLastIndex(({ role }) => role === "user");
  const out = system.trim() ? [{ role: "system", content: system }] : [];
  out.push(...historyOf(past.slice(0, asked)), { role: "user", content: past[asked].content },
    ...past.slice(asked + 1).flatMap(toldOf));
  if (answer.content || answer.reasoning) {
    const thoughts = answer.reasoning ? { reasoning_content: answer.reasoning } : {};
    out.push({ role: "assistant", content: answer.content, ...thoughts });
  }
  return out;
}

// Merges two copies of a conversation without losing a message; another tab may have written the copy `stored`. If both
// copies have a message, its later revision is used.
export function merge(stored, mine) {
  if (!stored) return linked(mine);
  const ours = new Map(mine.messages.map((message) => [message.id, message]));
  const messages = stored.messages.map((message) => {
    const own = ours.get(message.id);
    ours.delete(message.id);
    return own && (own.rev ?? 0) >= (message.rev ?? 0) ? own : message;
  });
  messages.push(...mine.messages.filter((message) => ours.has(message.id)));

  const named = stored.renamed_at > mine.renamed_at ? stored : mine;
  return linked({
    ...mine,
    title: named.title,
    renamed_at: named.renamed_at,
    updated_at: Math.max(stored.updated_at, mine.updated_at),
    messages,
    chosen: { ...stored.chosen, ...mine.chosen },
  });
}

// Searches a conversation for `words`. Returns the text around the first match, "" if only the title matches, null if
// nothing matches.
export function findIn(conversation, words) {
  const wanted = words.trim().toLowerCase();
  if (!wanted) return "";
  for (const { content } of conversation.messages) {
    const at = content.toLowerCase().indexOf(wanted);
    if (at < 0) continue;
    const from = Math.max(0, at - 24);
    const piece = content.slice(from, at + wanted.length + 48).replace(/\s+/g, " ").trim();
    return `${from > 0 ? "…" : ""}${piece}`;
  }
  return conversation.title.toLowerCase().includes(wanted) ? "" : null;
}

// Converts the messages [{role, content}] that an older version of the page kept in its tab to a conversation.
export function fromSession(kept, now_ms = Date.now()) {
  if (!Array.isArray(kept)) return null;
  const conversation = newConversation(now_ms);
  for (const one of kept) {
    if (typeof one?.content !== "string" || !["user", "assistant"].includes(one.role)) continue;
    const message = { id: newId(), role: one.role, content: one.content, at: now_ms, rev: 1 };
    if (one.role === "assistant") {
      const { reasoning, answer } = splitReasoning(one.content);
      const end = { reason: "stop", words: "" };
      Object.assign(message, { content: answer, reasoning, reasoning_ms: 0, end, facts: {} });
    }
    conversation.messages.push(message);
  }
  if (conversation.messages.length === 0) return null;
  conversation.title = titleFrom(conversation.messages[0].content);
  return linked(conversation);
}

// ---- files

const file_format = "moex-chat-1";

export function toJson(conversations) {
  return JSON.stringify({ format: file_format, conversations }, null, 2);
}

export function toMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  for (const message of pathOf(conversation)) {
    if (message.role === "user") {
      parts.push(`## ${say("file_question")}`, message.content);
      continue;
    }
    parts.push(`## ${say("file_answer")}`);
    if (message.reasoning) {
      parts.push(`<details><summary>${say("file_reasoning")}</summary>\n\n${message.reasoning}\n\n</details>`);
    }
    const calls = message.calls ?? [];
    if (message.content || calls.length === 0) parts.push(message.content || `*(${say("file_no_answer")})*`);
    for (const call of calls) {
      parts.push(`### ${say("calls_tool", call.name)}`, `\`\`\`json\n${call.arguments}\n\`\`\``);
      if (typeof call.result === "string") parts.push(`${say("result")}:\n\n\`\`\`\n${call.result}\n\`\`\``);
    }
  }
  return `${parts.join("\n\n")}\n`;
}

const textOf = (value) => (typeof value === "string" ? value : "");
const numberOf = (value, otherwise) => (Number.isFinite(value) ? value : otherwise);
const idOf = (value) => (/^[0-9a-f]{24}$/.test(value) ? value : newId());

function messageFrom(kept, now_ms) {
  if (!["user", "assistant"].includes(kept?.role) || typeof kept.content !== "string") return null;
  const message = {
    id: idOf(kept.id), role: kept.role, content: kept.content, at: numberOf(kept.at, now_ms),
    rev: numberOf(kept.rev, 1), parent: kept.parent === "" ? "" : idOf(kept.parent),
  };
  if (message.role === "user") return message;

  const calls = (Array.isArray(kept.calls) ? kept.calls : []).filter((call) => call && typeof call === "object")
    .map((call) => ({
      id: textOf(call.id), name: textOf(call.name), arguments: textOf(call.arguments),
      result: typeof call.result === "string" ? call.result : null,
    }));
  const end = kept.end ? { ...kept.end, reason: textOf(kept.end.reason), words: textOf(kept.end.words) } : null;
  return {
    ...message, reasoning: textOf(kept.reasoning), reasoning_ms: numberOf(kept.reasoning_ms, 0), thinking: false, end,
    facts: Object.fromEntries(Object.entries(kept.facts ?? {}).filter(([, value]) => typeof value !== "object")),
    calls, is_form: kept.is_form === true, ...(textOf(kept.refines) ? { refines: idOf(kept.refines) } : {}),
  };
}

// Returns the conversations of a file that toJson() wrote; unknown fields are left out. Throws a sentence for the user.
export function fromJson(text, now_ms = Date.now()) {
  let file = null;
  try {
    file = JSON.parse(text);
  } catch { /* said below */ }
  if (file?.format !== file_format || !Array.isArray(file.conversations)) {
    throw new Error(say("bad_file"));
  }

  const out = [];
  for (const kept of file.conversations) {
    if (!Array.isArray(kept?.messages)) continue;
    const messages = kept.messages.map((message) => messageFrom(message, now_ms)).filter(Boolean);
    if (messages[0]?.role !== "user") continue;
    const created_at = numberOf(kept.created_at, now_ms);
    const chosen = Object.entries(kept.chosen ?? {}).filter(([, value]) => typeof value === "string");
    out.push(linked({
      id: idOf(kept.id), title: textOf(kept.title) || titleFrom(messages[0].content), messages, created_at,
      renamed_at: numberOf(kept.renamed_at, 0), updated_at: numberOf(kept.updated_at, created_at),
      model: textOf(kept.model), chosen: Object.fromEntries(chosen),
    }));
  }
  if (out.length === 0) throw new Error(say("empty_file"));
  return out;
}

export function fileName(title, suffix) {
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 40);
  return `${name || "chat"}.${suffix}`;
}
