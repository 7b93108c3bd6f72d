// The chat page: one conversation, kept in this tab; answers stream in with their speed and who computed them.
import { ApiError, getJson, streamChat } from "/js/api.js";
import { copyText, renderMarkdown } from "/js/markdown.js";
import { read, write } from "/js/storage.js";

const element = (id) => document.getElementById(id);
const defaults = { system: "", temperature: 0.8, top_p: 0.95, max_tokens: 256, seed: "" };
const ideas = ["Tell me a story about a lighthouse and a storm.", "Write a short scene about two friends and a secret.", "Continue this story: The door had not been opened for a hundred years."];

let settings = { ...defaults, ...read("moex-settings", {}) };
let messages = read("moex-chat", []);        // {role, content, facts?}
let running = null;                          // AbortController of the answer that streams
let info = { model: "", api_key_required: false };

const apiKey = () => element("api-key").value.trim();

// ---- messages

function addMessage(role) {
  element("welcome")?.remove();
  const item = document.createElement("article");
  item.className = `message ${role}`;
  const body = document.createElement("div");
  body.className = "body";
  item.append(body);
  element("messages").append(item);
  return { item, body };
}

function showFacts(item, message) {
  item.querySelector(".facts")?.remove();
  const row = document.createElement("div");
  row.className = "facts";
  for (const fact of message.facts ?? []) {
    const span = document.createElement("span");
    span.textContent = fact;
    row.append(span);
  }
  const copy = document.createElement("button");
  copy.className = "button quiet";
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", () => copyText(message.content, copy));
  row.append(copy);
  item.append(row);
}

function show(message) {
  const { item, body } = addMessage(message.role);
  if (message.role === "user") body.textContent = message.content;
  else {
    renderMarkdown(body, message.content);
    showFacts(item, message);
  }
}

const thread = element("thread");
const atEnd = () => thread.scrollHeight - thread.scrollTop - thread.clientHeight < 80;
const toEnd = () => { thread.scrollTop = thread.scrollHeight; };

function factsOf(answer) {
  const facts = [];
  if (answer.tokens > 1 && answer.tokensPerSecond > 0) facts.push(`${answer.tokensPerSecond.toFixed(1)} tokens/s`);
  if (answer.ttftMs !== null) facts.push(`first token after ${answer.ttftMs < 1000 ? `${Math.round(answer.ttftMs)} ms` : `${(answer.ttftMs / 1000).toFixed(1)} s`}`);
  if (answer.moex) {
    const count = answer.moex.workers ?? 0;
    facts.push(count > 0 ? `answered by ${count} contributor${count === 1 ? "" : "s"}` : "answered by the hub itself");
    if (count > 0 && answer.moex.calls_local > 0) facts.push("with help of the hub");
  }
  if (answer.stopped) facts.push("stopped");
  if (answer.finish === "length") facts.push("reached the longest answer");
  return facts;
}

async function send(text) {
  const question = { role: "user", content: text };
  messages.push(question);
  show(question);
  const { item, body } = addMessage("assistant");
  body.classList.add("cursor");
  toEnd();
  setRunning(new AbortController());

  const answer = { text: "", tokens: 0, ttftMs: null, tokensPerSecond: 0, moex: null, finish: null, stopped: false };
  const begin = performance.now();
  let first = 0;
  let painting = false;
  const paint = () => {
    painting = false;
    const follow = atEnd();
    renderMarkdown(body, answer.text);
    if (follow) toEnd();
  };
  const request = {
    model: info.model,
    messages: [...(settings.system.trim() ? [{ role: "system", content: settings.system }] : []), ...messages.map(({ role, content }) => ({ role, content }))],
    temperature: settings.temperature, top_p: settings.top_p, max_tokens: settings.max_tokens,
    ...(/^\d+$/.test(settings.seed) ? { seed: Number(settings.seed) } : {}),
  };
  try {
    await streamChat(request, {
      key: apiKey(), signal: running.signal,
      onChunk(chunk) {
        const choice = chunk.choices?.[0];
        if (choice?.delta?.content) {
          if (!first) {
            first = performance.now();
            answer.ttftMs = first - begin;
          }
          answer.tokens += 1;
          answer.text += choice.delta.content;
          if (!painting) {
            painting = true;
            requestAnimationFrame(paint);
          }
        }
        if (choice?.finish_reason) answer.finish = choice.finish_reason;
        if (chunk.moex) answer.moex = chunk.moex;
        if (chunk.timings?.predicted_per_second) answer.tokensPerSecond = chunk.timings.predicted_per_second;
      },
    });
  } catch (error) {
    if (error.name === "AbortError") answer.stopped = true;
    else {
      answer.failed = error instanceof ApiError ? error.message : "The hub cannot be reached. Is it still running?";
      if (error.status === 401) openSettings(true);
    }
  }
  if (!answer.tokensPerSecond && answer.tokens > 1) answer.tokensPerSecond = (answer.tokens - 1) / ((performance.now() - first) / 1000);
  body.classList.remove("cursor");
  if (answer.text || !answer.failed) {
    renderMarkdown(body, answer.text || "*(an empty answer)*");
    const message = { role: "assistant", content: answer.text, facts: factsOf(answer) };
    messages.push(message);
    showFacts(item, message);
  } else {
    messages.pop();                       // the question did not count; it stays on the page
    element("prompt").value ||= text;
    resize();
  }
  if (answer.failed) {
    const note = document.createElement("p");
    note.className = "notice bad";
    note.textContent = answer.failed;
    item.append(note);
  }
  keepChat();
  setRunning(null);
  toEnd();
}

// A reload shows the conversation again, or as much of its end as the tab's storage takes.
function keepChat() {
  let kept = messages;
  while (!write("moex-chat", kept) && kept.length > 0) kept = kept.slice(Math.ceil(kept.length / 2));
}

function setRunning(controller) {
  running = controller;
  element("send").hidden = !!controller;
  element("stop").hidden = !controller;
  element("new-chat").hidden = !!controller || messages.length === 0;
  if (!controller) element("prompt").focus();
}

// ---- composer

const prompt = element("prompt");
function resize() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, window.innerHeight * 0.4)}px`;
}
function submit() {
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  resize();
  send(text);
}
prompt.addEventListener("input", resize);
prompt.addEventListener("keydown", (event) => {
  // Enter that ends the composition of an input method does not send.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
    event.preventDefault();
    submit();
  }
});
element("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
element("stop").addEventListener("click", () => running?.abort());
element("new-chat").addEventListener("click", () => {
  write("moex-chat", []);
  location.reload();
});
for (const idea of ideas) {
  const button = document.createElement("button");
  button.className = "button";
  button.type = "button";
  button.textContent = idea;
  button.addEventListener("click", () => { if (!running) send(idea); });
  element("ideas").append(button);
}

// ---- settings

function openSettings(open) {
  element("settings").hidden = !open;
  element("open-settings").setAttribute("aria-expanded", String(open));
  if (open) element("system").focus();
  else prompt.focus();
}
function showSettings() {
  for (const name of Object.keys(defaults)) {
    element(name).value = settings[name];
    const value = element(`${name}-value`);
    if (value) value.textContent = settings[name];
  }
  element("snippet").textContent = `curl ${location.origin}/v1/chat/completions \\
  -H 'Content-Type: application/json' \\${info.api_key_required ? "\n  -H 'Authorization: Bearer YOUR_KEY' \\" : ""}
  -d '{"model": "${info.model}", "messages":
       [{"role": "user", "content": "Hello"}]}'

import OpenAI from "openai";
const client = new OpenAI({
  baseURL: "${location.origin}/v1",
  apiKey: "${info.api_key_required ? "YOUR_KEY" : "none"}",
});`;
}
for (const name of Object.keys(defaults)) {
  element(name).addEventListener("input", () => {
    settings[name] = typeof defaults[name] === "number" ? Number(element(name).value) : element(name).value;
    write("moex-settings", settings);
    const value = element(`${name}-value`);
    if (value) value.textContent = settings[name];
  });
}
element("open-settings").addEventListener("click", () => openSettings(element("settings").hidden));
element("close-settings").addEventListener("click", () => openSettings(false));
element("reset-settings").addEventListener("click", () => { settings = { ...defaults }; write("moex-settings", settings); showSettings(); });
element("export-chat").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify({ model: info.model, messages }, null, 2)], { type: "application/json" }));
  link.download = "moex-chat.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running ? running.abort() : openSettings(false); });

// ---- who is there

async function refreshPool() {
  const pool = element("pool");
  const banner = element("banner");
  try {
    const { body, status } = await getJson("/health");
    const workers = body?.workers ?? 0;
    pool.className = `pill ${body?.status === "ok" ? "good" : "warn"}`;
    pool.textContent = workers > 0 ? `${workers} contributor${workers === 1 ? "" : "s"}` : body?.status === "ok" ? "hub only" : "nobody here";
    banner.hidden = status === 200;
    if (status !== 200) {
      banner.replaceChildren();
      if (body?.status === "draining") banner.textContent = "The hub is shutting down.";
      else {
        const link = document.createElement("a");
        link.href = element("join-link").href;
        link.textContent = "Lend this browser's GPU";
        banner.append("Not every expert has a contributor yet, so answers must wait. ", link, " or share the join link.");
      }
    }
  } catch {
    pool.className = "pill bad";
    pool.textContent = "hub offline";
    banner.hidden = false;
    banner.textContent = "The hub does not answer. This page goes on by itself when it is back.";
  }
}

async function start() {
  for (const message of messages) show(message);
  setRunning(null);
  toEnd();
  const { ok, body } = await getJson("/api/info").catch(() => ({ ok: false }));
  if (ok) {
    info = { ...info, ...body };
    element("model").textContent = info.model;
    element("key-field").hidden = !info.api_key_required;
    const longest = Math.max(16, Math.min(1024, info.context_tokens ?? 1024));
    element("max_tokens").max = longest;
    settings.max_tokens = Math.min(settings.max_tokens, longest);
  }
  element("api-key").value = read("moex-key", "");
  element("api-key").addEventListener("input", () => write("moex-key", apiKey()));
  const status = await getJson("/api/status", apiKey()).catch(() => ({ ok: false }));
  if (status.ok && status.body.join_url) element("join-link").href = status.body.join_url;
  showSettings();
  refreshPool();
  setInterval(refreshPool, 3000);
}
start();
