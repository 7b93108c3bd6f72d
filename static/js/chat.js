// The chat page: connects the store, the views and the hub's API. Messages are defined in chat/conversation.js, and the
// texts in chat/words.js and words/chat.js. This file decides what happens when.
import { ApiError, getJson, resumeChat, stopChat, streamChat } from "./api.js";
import { fileName, fromJson, messagesFor, toJson, toMarkdown } from "./chat/conversation.js";
import { formOf, lengthLimit, numAnswers, samplingOf } from "./chat/settings.js";
import { keepPage, keptInfo, letGoOfPage, noteSession, numSessions } from "./chat/away.js";
import { ThisDevice } from "./chat/device.js";
import { DevicePanel } from "./chat/device_panel.js";
import { Places, hasOtherModel } from "./chat/places.js";
import { betterOf, pairUp } from "./chat/refine.js";
import { Remembering } from "./chat/remembering.js";
import { SettingsPanel } from "./chat/settings_panel.js";
import { Sidebar } from "./chat/sidebar.js";
import { Store } from "./chat/store.js";
import { Thread } from "./chat/thread.js";
import { Turns } from "./chat/turn.js";
import {
  bannerWords, bothWords, endWords, errorWords, isFinal, offerWords, placeWords, poolWords, unreachable,
} from "./chat/words.js";
import { button, download, element, make } from "./dom.js";
import { askToForget, forgetEverything, forgottenWords, listenForForget, startAnew } from "./forget.js";
import { speakIn } from "./language.js";
import { drop, read, withLock, write } from "./storage.js";
import { say, table } from "./words/chat.js";

const keep_every_ms = 2000;
const look_every_ms = 3000;
const left_name = "moex-stream";
const ideas = ["idea_lighthouse", "idea_scene", "idea_door"];

let info = { model: "", context_tokens: null, api_key_required: false };
let health_status = 0;       // HTTP status
let health;                  // reply of /health; null when the hub does not answer, undefined before the first poll
let num_sessions = null;     // of how many conversations pages are kept on this device; null when it is not known
let unanswered = null;       // the question that failed last because the hub was away: {conversation, messages}
// State of the answers that stream now: {controller, conversation, messages, turns}. `messages` are those that grow,
// `turns` the Turns of each stream.
let running = null;

const apiKey = () => element("api-key").value.trim();
speakIn(table, element("language"), drawAnew);
const store = await Store.open(onStore);
const panel = new SettingsPanel(choosePlace);
const remembering = new Remembering(() => {
  device.remember();
  drawPages();
});
const device = new ThisDevice({ apiKey, remembers: () => remembering.is_on, onChange: drawDevice, onPages: notePages });
const places = new Places();
const device_panel = new DevicePanel({
  load: () => device.load(),
  stop: () => {
    device.end();
    device.begin();      // asks the user again whether to download the missing bytes
  },
  again: () => device.begin(),
  remember: (is_on) => remembering.choose(is_on),
});
const thread = new Thread(element("thread"), element("messages"), {
  continue: (message) => answer(store.current, [message]),
  retry: (message) => answer(store.current, [message]),
  again: (message) => answerAgain(message),
  edit: (message, text) => ask(text, message.parent),
  choose: (message) => store.choose(message),
  results: (message) => answerWithResults(message),
});
const sidebar = new Sidebar(store, {
  select: (id) => go(id),
  rename: (id, title) => store.rename(id, title),
  remove: (id) => {
    if (running?.conversation.id === id) running.controller.abort();
    if (!device.forget(id)) remembering.forget(id);
    if (remembering.is_on) noteSession({ conversation: id, pages: 0 });
    return store.remove(id);
  },
  begin: () => {
    go("");
    element("prompt").focus();
  },
});

// ---- events of the conversation store

function onStore(what) {
  if (what === "list") sidebar?.draw();
  if (what === "open") drawThread();
  if (what === "trouble") {
    element("trouble").hidden = false;
    element("trouble").textContent = say("cannot_keep");
  }
}

function drawThread() {
  const { current } = store;
  const is_empty = current.messages.length === 0;
  element("welcome").hidden = !is_empty;
  element("title").textContent = is_empty ? say("new_chat") : current.title;
  document.title = is_empty ? say("title") : say("titled", current.title);
  element("export-box").hidden = is_empty;
  thread.show(current, running?.messages ?? []);
  drawComposer();
}

// The address contains the conversation's id, so that a reload and the back button find it again.
function go(id) {
  const hash = id ? `#c=${id}` : "";
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname);
  store.select(id);
}
const idInAddress = () => new URLSearchParams(location.hash.slice(1)).get("c") ?? "";
addEventListener("popstate", () => store.select(idInAddress()));

// ---- an answer

function canAsk() {
  if (running) return false;
  const field = panel.wrongField();
  if (field) panel.open(element(field));
  if (field !== null) return false;
  if (needsKey()) panel.open(element("api-key"));
  if (needsKey()) return false;
  if (!isHere() || device.ready || device.is_coming) return true;
  panel.open(device_panel.focus());
  toast(say("device_not_ready"));
  return false;
}

// True if the hub would refuse a question because it has no key.
function needsKey() { return info.api_key_required && apiKey() === "" && !isHere(); }

// ---- place of computation: the hub, this device, either, or both: a draft here, and a better answer by the hub

// True if no word may leave this device.
function isHere() { return panel.settings.place === "device"; }
function isEither() { return panel.settings.place === "either"; }
function isRefined() { return panel.settings.place === "refine"; }
const usesHubToo = () => isEither() || isRefined();

// Applies the chosen place of computation. Switching to the hub frees the memory that the model takes on this device.
function choosePlace() {
  if (isHere() || usesHubToo()) {
    device.begin();
    drawDevice(device.state);      // the device may be ready already, and the words say where questions go now
    return;
  }
  device.end();
  letGoOfPage();
}

function drawDevice(state) {
  device_panel.draw(state, panel.settings.place);
  drawPages();
  drawPool();
  drawComposer();
  if (state.phase === "ready") {
    const keeping = keepPage(info.model ? info : null, Boolean(state.processor));
    keeping.then((is_kept) => device_panel.tellKept(is_kept));
  }
}

function drawPages() {
  device_panel.drawRemembering(remembering.choice, device.pages, device.state.phase, num_sessions);
}

// Notes kept pages in the registry of sessions, and shows of how many conversations something is kept.
async function notePages() {
  drawPages();
  const { is_on, session } = device.pages;
  if (!remembering.is_on || !is_on) return;
  if (session) await noteSession(session);
  num_sessions = await numSessions();
  drawPages();
}

// Passes on the chunks of an answer that this device computes, in the format of streamChat().
function answerHere(request, how) {
  const { response_format, tools, grammar } = request;
  if (response_format || tools || grammar) throw new ApiError(400, { code: "no_form", message: say("device_no_form") });
  return device.answer(request, how);
}

// Passes on the chunks of an answer that either place computes; the device chooses, as soon as it can.
async function answerFromEither(request, how) {
  const { response_format, tools, grammar, n = 1 } = request;
  const is_hubs = response_format || tools || grammar || n > 1 || !device.ready;
  const limit = Number(panel.settings.max_tokens) || 0;
  const { quality } = panel.settings;
  const wish = places.wish({ key: apiKey(), info, health, limit, quality });
  let pages = "";      // the hub's name for what this device has read of the question
  const onPlace = (report) => {
    pages = report.sent_as ?? "";
    how.onPlace(report);
  };
  if (!is_hubs && await device.answer(request, { ...how, onPlace, wish })) return;
  how.onPlace({ placed: "hub" });
  await streamChat(pages ? { ...request, moex: { ...request.moex, pages } } : request, how);
}

// True if this device may write a draft of a question's answer, and the hub the better one. Forms, and several answers
// to a question, are the hub's alone, and so is a question before the model is here, as long as the hub answers.
function mayDraft() {
  const { response_format, tools, grammar } = formOf(panel.settings);
  const is_here = device.ready || (device.is_coming && health?.status !== "ok");
  return isRefined() && is_here && numAnswers(panel.settings) === 1 && !(response_format || tools || grammar);
}

// Passes on the chunks of the answer `message` of this device: a draft, if route() says so (hub/route/route.h). The
// hub's better answer is then begun beside it. With little battery, or a question that is too long for this device, the
// answer is the hub's alone.
async function answerOrDraft(message, request, how) {
  const run = running;
  let is_placed = false, is_draft = false, pages = "";
  // A draft that was lost and is computed once more is placed again, but the better answer is begun once.
  const onPlace = (report) => {
    is_placed = true;
    pages = report.sent_as ?? "";
    if (is_draft) return;
    is_draft = report.placed === "refined" || (report.placed === "here" && hasOtherModel(info));
    if (is_draft) beginBetter(run, message);
    how.onPlace(report);
  };
  const limit = Number(panel.settings.max_tokens) || 0;
  const wish = places.wish({ key: apiKey(), info, health, limit, quality: "draft_then_best" });
  try {
    if (await device.answer(request, { ...how, onPlace, wish })) return;
  } catch (error) {
    if (is_placed || error.name === "AbortError") throw error;
    how.onPlace({ placed: "hub" });
  }
  // The better answer of a draft is on its way.
  if (is_draft) how.onChunk({ choices: [{ delta: {}, finish_reason: "stop" }] });
  else await streamChat(pages ? { ...request, moex: { ...request.moex, pages } } : request, how);
}

// Begins the hub's answer that is offered in the place of `draft`, an answer of `run`.
function beginBetter(run, draft) {
  const { conversation, controller } = run;
  const [, better] = pairUp([draft, store.answerBeside(conversation, draft)]);
  run.messages.push(better);
  drawThread();
  const way = { messages: [better], place: "hub", answerFrom: streamChat };
  run.others.push(streamFrom(conversation, way, controller.signal, null));
}

// Adds empty answers to `question`, side by side; this device computes only one.
function answersTo(question) {
  return store.answersTo(question, isHere() || mayDraft() ? 1 : numAnswers(panel.settings));
}

// Adds the question `text` after the message `parent`, by default the last shown message, and starts the answers.
function ask(text, parent) {
  if (!canAsk()) return false;
  const { current } = store;
  const messages = answersTo(store.ask(text, info.model, parent));
  if (idInAddress() !== current.id) history.replaceState(null, "", `#c=${current.id}`);
  answer(current, messages);      // call it before drawThread(), which then draws the message as running
  drawThread();
  return true;
}

function answerAgain(message) {
  if (!canAsk()) return;
  const { current } = store;
  answer(current, answersTo(current.messages.find(({ id }) => id === message.parent)));
  drawThread();
}

// Starts the answer that follows tool calls, when `message` has the results of all its calls.
function answerWithResults(message) {
  if (!canAsk()) return;
  const { current } = store;
  const next = answersTo(message);
  store.save(current, [message]);
  answer(current, next);
  drawThread();
}

// Streams answers into `messages`. A lock prevents two tabs from writing the same answer. `left`: the stream that a
// closed page was reading, if this page resumes it.
let lock_before = Promise.resolve();      // resolves when this tab has released its previous lock
async function answer(conversation, messages, left = null) {
  if (running) return;
  const own = { controller: new AbortController(), conversation, messages: [...messages], turns: [], others: [] };
  running = own;
  drawComposer();
  try {
    await lock_before.catch(() => {});
    // To resume a stream, wait for the lock: the previous page may still be closing. Another tab that is a copy of this
    // tab may have completed the answer in the meantime.
    const how = left ? { signal: own.controller.signal } : { ifAvailable: true };
    const isWhole = () => messages.every(({ id }) => conversation.messages.some((one) => one.id === id && one.end));
    lock_before = withLock(`moex-chat-${conversation.id}`, how, (lock) => {
      if (left && isWhole()) return undefined;
      if (lock !== null) return stream(conversation, messages, left);
      announce(say("other_tab"));
      return undefined;
    });
    await lock_before;
  } finally {
    if (running === own) {      // true if this call started no stream
      running = null;
      messages.forEach((message) => thread.end(message));
    }
    drawComposer();
  }
}

// The place of a message, by the place of the worker's report.
const place_names = { here: "device", hub: "hub", handed: "handed", refined: "device" };

// Returns the streams of the answers `messages`: [{messages, place, answerFrom}]; the place "" is chosen later.
function sourcesOf(conversation, messages, left) {
  if (left) return [{ messages, place: "hub", answerFrom: (_, how) => resumeChat(left.id, how) }];
  if (isHere()) return [{ messages, place: "device", answerFrom: answerHere }];
  if (isEither()) return [{ messages, place: "", answerFrom: answerFromEither }];
  const [first] = messages;
  const is_new = !first.refines && !betterOf(conversation.messages, first) && !first.content && !first.reasoning;
  if (is_new && mayDraft()) {
    const answerFrom = (request, how) => answerOrDraft(first, request, how);
    return [{ messages, place: "", answerFrom }];
  }
  const isDraft = (message) => isRefined() && betterOf(conversation.messages, message) !== undefined;
  const drafts = messages.filter(isDraft), others = messages.filter((message) => !isDraft(message));
  return [
    { messages: drafts, place: "device", answerFrom: answerHere },
    { messages: others, place: "hub", answerFrom: streamChat },
  ].filter((one) => one.messages.length > 0);
}

// A draft and its better answer say so at their place, and name their models.
function noteRole(conversation, message) {
  const { facts } = message;
  if (facts.place === "device" && betterOf(conversation.messages, message)) {
    Object.assign(facts, { place: "drafted", model: info.device_model ?? info.model });
  } else if (facts.place === "hub" && message.refines) Object.assign(facts, { place: "refined", model: info.model });
}

// Streams the answers `messages`, from the hub, from this device, or from both.
async function stream(conversation, messages, left) {
  const { controller } = running;
  store.busy = conversation;
  const ways = sourcesOf(conversation, messages, left);
  const is_over = await Promise.all(ways.map((way) => streamFrom(conversation, way, controller.signal, left)));
  is_over.push(...await Promise.all(running.others));
  const had_focus = document.activeElement === document.body || document.activeElement === element("stop");
  running = null;
  store.busy = null;
  is_over.forEach((tell) => tell());
  drawComposer();
  if (had_focus && !matchMedia("(pointer: coarse)").matches) element("prompt").focus();
}

// Streams the answers `messages`, side by side, from one place. Resolves when they have ended, to a function that ends
// them on the page.
async function streamFrom(conversation, { messages, answerFrom, ...way }, signal, left) {
  const { settings } = panel;
  const requestFor = () => ({
    model: info.model,
    messages: messagesFor(conversation, messages[0], settings.system),
    ...samplingOf(settings),
    ...formOf(settings),
    ...(messages.length > 1 ? { n: messages.length } : {}),
  });
  // The hub sends a resumed stream from its first event on, so each message restarts with the text that it had then.
  const from = messages.map(({ content, reasoning, reasoning_ms, facts }, i) => {
    const mine = { reasoning_ms, facts: { ...facts } };
    const { content: chars, reasoning: thought_chars, ...past } = left?.from[i] ?? mine;
    return { content: content.slice(0, chars), reasoning: reasoning.slice(0, thought_chars), ...past };
  });
  let { place } = way;
  const notePlace = () => messages.forEach((message, i) => {
    const { content, facts } = from[i];
    message.facts.place = content && facts.place === "hub" && ["device", "handed"].includes(place) ? "both" : place;
    noteRole(conversation, message);
  });
  let turns = null, stream_id = left?.id ?? "";
  const begin = () => {
    if (turns) return;
    messages.forEach((message, i) => {
      const { facts } = from[i];
      Object.assign(message, from[i], { facts: { ...facts, ttft_ms: message.facts.ttft_ms ?? null } });
    });
    notePlace();
    turns = new Turns(messages, { now_ms: performance.now(), workers: workersNow() });
    running.turns.push(turns);
  };
  if (!left) {
    begin();
    for (const message of messages) message.is_form = formOf(settings).response_format !== undefined;
  }
  messages.forEach((message) => thread.begin(message));
  thread.offer(running.messages);
  store.save(conversation, messages);

  let kept_at = performance.now();
  let reason = "", words = "", is_final = false;
  const how = {
    key: apiKey(), signal, conversation: conversation.id,
    onStream(id) {
      stream_id = id;
      begin();
      const ids = messages.map((message) => message.id);
      // Of the texts only their lengths: the conversation has them, encrypted.
      const lengths = from.map((one) => ({ ...one, content: one.content.length, reasoning: one.reasoning.length }));
      if (id) write(left_name, { id, conversation: conversation.id, messages: ids, from: lengths });
    },
    onPlace({ placed }) {
      place = place_names[placed];
      notePlace();
      messages.forEach((message) => thread.grow(message));
    },
    onChunk(chunk) {
      const now = performance.now();
      places.learn(chunk, place);
      turns.add(chunk, now).forEach((message) => thread.grow(message));
      if (now - kept_at < keep_every_ms) return;
      kept_at = now;
      store.save(conversation, messages);
    },
  };
  try {
    await answerFrom(requestFor(), how);
  } catch (error) {
    reason = error.name === "AbortError" ? "stopped" : "failed";
    if (reason === "failed") words = error instanceof ApiError ? errorWords(error) : unreachable();
    is_final = isFinal(error);
    // While the hub is away, a proxy answers without an error of the hub.
    const is_away = !error.status || (error.status >= 502 && !error.code);
    if (reason === "failed" && place === "hub" && is_away) unanswered = { conversation, messages };
    if (error.status === 401) panel.open(element("api-key"));
  }
  if (reason === "stopped" && stream_id) stopChat(stream_id, apiKey());

  const { context_tokens } = place !== "hub" && device.ready ? device.state : info;
  turns?.see(workersNow());
  turns?.end(reason, { now_ms: performance.now(), words, is_final, limit: lengthLimit(settings), context_tokens });
  // Drop the note about the stream only after the answer is saved: until then, a reloaded page can resume the stream.
  const forget = () => read(left_name, null)?.id === stream_id && drop(left_name);
  const isGrowing = (message) => !messages.includes(message);
  const end = () => {
    store.save(conversation, messages).then(forget, forget);
    messages.forEach((message) => thread.end(message));
    tellEnd(conversation, messages);
  };
  running.messages = running.messages.filter(isGrowing);
  if (running.messages.length === 0) return end;
  end();
  return () => {};
}

// Lets screen readers read the shown one of `messages`, or that one is offered in the place of what is shown.
function tellEnd(conversation, messages) {
  const shown = messages.find((message) => thread.shows(message));
  if (!shown && messages[0].refines) {
    thread.offer(running?.messages ?? []);
    return announce(offerWords(messages[0], false).text);
  }
  const { content } = shown ?? messages[0];
  return announce(endWords(shown ?? messages[0])?.text ?? "", content);
}

// Asks the question again that failed because the hub was away, when the hub is back; at most once.
function askUnanswered() {
  if (running || !unanswered) return;
  const { conversation, messages } = unanswered;
  unanswered = null;
  const isFailed = (message) => message.end?.reason === "failed" && conversation.messages.includes(message);
  if (messages.every(isFailed) && !isHere()) answer(conversation, messages);
}

// Resumes the answer that this tab was reading when its page was closed; the hub continues it for a while.
function resumeLeft() {
  const left = read(left_name, null);
  const conversation = store.conversations.get(left?.conversation);
  const messages = left?.messages?.map((wanted) => conversation?.messages.find(({ id }) => id === wanted)) ?? [];
  if (messages.length === 0 || messages.some((message) => !message || message.end)) drop(left_name);
  else answer(conversation, messages, left);
}

// Lets screen readers read the finished answer once, and how it ended.
function announce(words, text = "") {
  element("announce").textContent = [text, words].filter(Boolean).join(" — ");
}

const workersNow = () => (health?.status === "ok" ? health.workers ?? 0 : null);

// ---- composer

const prompt = element("prompt");
function resize() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, window.innerHeight * 0.4)}px`;
}

function submit() {
  const text = prompt.value.trim();
  if (!text || !ask(text)) return;
  prompt.value = "";
  resize();
}

function drawComposer() {
  element("send").hidden = running !== null;
  element("stop").hidden = running === null;
  element("messages").classList.toggle("busy", running !== null);
  element("hint").textContent = hintWords();
}

function hintWords() {
  if (running && running.conversation !== store.current) return say("answering_in", running.conversation.title);
  if (running && device.waits > 0) return say("waits_for_tab");
  if (!running || !isHere() || !device.is_coming) return say("hint");
  const { layers, num_layers } = device.early ?? {};
  return layers ? say("reads_early", layers, num_layers) : say("waits_for_device");
}

prompt.addEventListener("input", resize);
prompt.addEventListener("keydown", (event) => {
  // Enter sends the question, but not an Enter that ends the composition of an input method (IME).
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  submit();
});
element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
element("stop").addEventListener("click", () => running?.controller.abort());
function drawIdeas() {
  element("ideas").replaceChildren(...(needsKey()
    ? [button("primary", say("enter_key"), () => panel.open(element("api-key")))]
    : ideas.map((idea) => button("", say(idea), () => ask(say(idea))))));
}
drawIdeas();

// Escape closes the topmost panel. If no panel is open, it stops the answer. An Escape that an input method (IME) uses
// does neither.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || event.keyCode === 229 || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]")) return;      // the browser closes the open dialog
  if (sidebar.close() || panel.close()) return;
  running?.controller.abort();
});

// ---- import and export of files, and deletion of all data

element("export-markdown").addEventListener("click", () => {
  download(fileName(store.current.title, "md"), toMarkdown(store.current), "text/markdown");
});
element("export-json").addEventListener("click", () => {
  download(fileName(store.current.title, "json"), toJson([store.current]), "application/json");
});
element("export-all").addEventListener("click", () => {
  download("moex-chats.json", toJson(store.list().map(({ conversation }) => conversation)), "application/json");
});

element("import").addEventListener("click", () => element("import-file").click());
element("import-file").addEventListener("change", async () => {
  const [file] = element("import-file").files;
  element("import-file").value = "";      // lets the user choose the same file again
  if (!file) return;
  try {
    const conversations = fromJson(await file.text());
    const num_new = await store.add(conversations);
    const rest = conversations.length - num_new;
    const parts = [say("imported", num_new), rest > 0 ? say("here_already", rest) : ""];
    toast(parts.filter(Boolean).join(" "));
  } catch (error) {
    toast(error.message);
  }
});

element("forget").addEventListener("click", async () => {
  if (!await askToForget(say("forget_what", store.conversations.size))) return;
  running?.controller.abort();
  device.end();
  store.keeper.close();
  startAnew(await forgetEverything());
});
listenForForget(() => {
  running?.controller.abort();
  device.end();
  store.keeper.close();
});

function tellForgotten() {
  const words = forgottenWords();
  if (words) toast(words);
}

function toast(words) {
  element("toast").replaceChildren(make("span", "", words));
  element("toast").hidden = false;
}

// ---- the pool

let was_away = false;        // true from a poll that the hub did not answer to the next that it answers
async function look() {
  const answer = await getJson("health").catch(() => null);
  health = answer?.body ?? null;
  if (was_away && health?.status === "ok") askUnanswered();
  was_away = health === null || (was_away && health.status !== "ok");
  running?.turns.forEach((turns) => turns.see(workersNow()));
  health_status = answer?.status ?? 0;
  drawPool();
}

function drawPool() {
  const is_here = isHere();
  if (health === undefined && !is_here) return;
  const hub_words = is_here ? null : poolWords(health, needsKey());
  const { kind, text, short, welcome } = is_here ? placeWords(device.state)
    : usesHubToo() ? bothWords(panel.settings.place, device.state, hub_words, health === null) : hub_words;
  element("pool").className = `pill ${kind}`;
  element("pool-text").textContent = text;
  element("pool-short").textContent = short;
  element("welcome-words").textContent = welcome;
  const hours = is_here ? 0 : health?.prompts_kept_hours ?? 0;
  element("kept-on-disk").hidden = !(hours > 0);
  element("kept-on-disk").textContent = hours > 0 ? say("kept_on_disk", hours) : "";

  const words = is_here ? null : bannerWords(health, health_status, usesHubToo() && device.ready);
  const banner = element("banner");
  banner.hidden = words === null;
  if (!words || banner.dataset.words === words.text) return;
  banner.dataset.words = words.text;
  banner.replaceChildren(`${words.text} `);
  if (words.wants_join) {
    const link = make("a", "", say("lend_this"), { href: element("join-link").href });
    banner.append(link, say("or_share"));
  }
}

// Draws all texts of the page again after the user has chosen another language.
function drawAnew() {
  thread.showAnew(store.current, running?.messages ?? []);
  drawThread();
  drawIdeas();
  sidebar.draw();
  panel.draw();
  panel.drawKnown();
  drawDevice(device.state);
}

// ---- start

async function start() {
  const left = await store.adoptSession(read("moex-chat", null));
  drop("moex-chat");
  element("api-key").value = read("moex-key", "");
  store.select(idInAddress() || left?.id || "");
  resumeLeft();
  drawThread();
  sidebar.draw();
  tellForgotten();
  element("api-key").addEventListener("input", () => {
    write("moex-key", apiKey());
    drawIdeas();
    drawPool();
  });
  if (panel.settings.place !== "hub") choosePlace();
  look();
  setInterval(look, look_every_ms);

  const { ok, body } = await getJson("api/info").catch(() => ({ ok: isHere(), body: keptInfo() }));
  if (ok) info = { ...info, ...body };
  element("model").textContent = info.model;
  panel.know(info);
  if (panel.settings.place === "hub") choosePlace();
  drawIdeas();
  drawPool();

  const status = await getJson("api/status", apiKey()).catch(() => ({ ok: false }));
  if (status.ok && status.body.join_url) element("join-link").href = status.body.join_url;
}
start();
