// Conversations as plain data: how they begin, what the model is sent of them, how two tabs' copies become one, how
// they leave as files. Pure.
//   conversation  {id, title, renamed_at, created_at, updated_at, model, messages}
//   message       {id, role, content, at, rev}
//   the assistant's also {reasoning, reasoning_ms, end: {reason, words}, facts}
import { splitReasoning } from "./reasoning.js";

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(now_ms = Date.now()) {
  return { id: newId(), title: "", renamed_at: 0, created_at: now_ms, updated_at: now_ms, model: "", messages: [] };
}

const title_max = 60;
export function titleFrom(question) {
  const line = question.trim().split("\n")[0].replace(/\s+/g, " ");
  if (line.length <= title_max) return line || "New chat";

  const cut = line.slice(0, title_max);
  const space = cut.lastIndexOf(" ");
  return `${(space > 20 ? cut.slice(0, space) : cut).replace(/[\s.,;:!?–-]+$/, "")}…`;
}

export const hasText = (message) => message.content.trim() !== "";

// What the model is told of the past: questions that got an answer, and the answers without the thoughts before them.
export function historyOf(messages) {
  const out = [];
  messages.forEach((message, i) => {
    if (message.role !== "user") return;
    const answer = messages[i + 1];
    if (answer?.role !== "assistant" || !hasText(answer)) return;
    out.push({ role: "user", content: message.content }, { role: "assistant", content: answer.content });
  });
  return out;
}

// The messages of a request for `answer`, which is about to be written. When it has text already, they ask for its
// continuation: the last message is then the assistant's, and the thoughts that led to it go along.
export function messagesFor(conversation, answer, system) {
  const at = conversation.messages.indexOf(answer);
  const question = conversation.messages[at - 1];
  const out = system.trim() ? [{ role: "system", content: system }] : [];
  out.push(...historyOf(conversation.messages.slice(0, at - 1)), { role: "user", content: question.content });
  if (answer.content || answer.reasoning) {
    const thoughts = answer.reasoning ? { reasoning_content: answer.reasoning } : {};
    out.push({ role: "assistant", content: answer.content, ...thoughts });
  }
  return out;
}

// Two copies of one conversation, `stored` perhaps by another tab: nothing that either holds is lost. Of one message
// the later revision counts.
export function merge(stored, mine) {
  if (!stored) return mine;
  const ours = new Map(mine.messages.map((message) => [message.id, message]));
  const messages = stored.messages.map((message) => {
    const own = ours.get(message.id);
    ours.delete(message.id);
    return own && (own.rev ?? 0) >= (message.rev ?? 0) ? own : message;
  });
  messages.push(...mine.messages.filter((message) => ours.has(message.id)));

  const named = stored.renamed_at > mine.renamed_at ? stored : mine;
  return {
    ...mine,
    title: named.title,
    renamed_at: named.renamed_at,
    updated_at: Math.max(stored.updated_at, mine.updated_at),
    messages,
  };
}

// Where the words are found: a piece of text around them, "" when only the title has them, null when nothing has.
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

// The one conversation that an older page kept in its tab: [{role, content}].
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
  return conversation;
}

// ---- files

export function toJson(conversations) {
  return JSON.stringify({ format: "moex-chat-1", conversations }, null, 2);
}

export function toMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  for (const message of conversation.messages) {
    if (message.role === "user") {
      parts.push("## Question", message.content);
      continue;
    }
    parts.push("## Answer");
    if (message.reasoning) parts.push(`<details><summary>Reasoning</summary>\n\n${message.reasoning}\n\n</details>`);
    parts.push(message.content || "*(no answer)*");
  }
  return `${parts.join("\n\n")}\n`;
}

export function fileName(title, suffix) {
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 40);
  return `${name || "chat"}.${suffix}`;
}
