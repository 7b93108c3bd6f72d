// The chat page: connects the store, the views and the hub's API, and decides what happens when. The answers that
// stream are in chat/answers.js, and who computes them in chat/sources.js. Messages are defined in
// chat/conversation.js, and the texts in chat/words.js and words/chat.js.
import { getJson } from "./api.js";
import { Answers } from "./chat/answers.js";
import { keepPage, keptInfo, letGoOfPage, noteSession, numSessions } from "./chat/away.js";
import { ThisDevice } from "./chat/device.js";
import { DevicePanel } from "./chat/device_panel.js";
import { handleFiles } from "./chat/files.js";
import { Places } from "./chat/places.js";
import { Remembering } from "./chat/remembering.js";
import { SettingsPanel } from "./chat/settings_panel.js";
import { Sidebar } from "./chat/sidebar.js";
import { Sources } from "./chat/sources.js";
import { Store } from "./chat/store.js";
import { Thread } from "./chat/thread.js";
import { bannerWords, bothWords, placeWords, poolWords } from "./chat/words.js";
import { button, element, make } from "./dom.js";
import { askToForget, forgetEverything, forgottenWords, listenForForget, startAnew } from "./forget.js";
import { speakIn } from "./language.js";
import { drop, read, write } from "./storage.js";
import { say, table } from "./words/chat.js";

const look_every_ms = 3000;
const ideas = ["idea_lighthouse", "idea_scene", "idea_door"];

let info = { model: "", context_tokens: null, api_key_required: false };
let health_status = 0;       // HTTP status
let health;                  // reply of /health; null when the hub does not answer, undefined before the first poll
let num_sessions = null;     // of how many conversations pages are kept on this device; null when it is not known

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
const facts = () => ({ info, health, key: apiKey() });
const sources = new Sources({
  panel, device, places, facts, onDraft: (run, message) => answers.beginBetter(run, message),
});
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
  continue: (message) => answers.begin(store.current, [message]),
  retry: (message) => answers.begin(store.current, [message]),
  again: (message) => answerAgain(message),
  edit: (message, text) => ask(text, message.parent),
  choose: (message) => store.choose(message),
  results: (message) => answerWithResults(message),
});
const answers = new Answers({
  store, thread, panel, device, places, sources, facts, onChange: drawComposer, onMessages: drawThread,
});
const sidebar = new Sidebar(store, {
  select: (id) => go(id),
  rename: (id, title) => store.rename(id, title),
  remove: (id) => {
    if (answers.conversation?.id === id) answers.stop();
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
  thread.show(current, answers.messages);
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

// ---- questions

function canAsk() {
  if (answers.isRunning) return false;
  const field = panel.wrongField();
  if (field) panel.open(element(field));
  if (field !== null) return false;
  if (needsKey()) panel.open(element("api-key"));
  if (needsKey()) return false;
  if (!sources.isHere() || device.ready || device.is_coming) return true;
  panel.open(device_panel.focus());
  toast(say("device_not_ready"));
  return false;
}

// True if the hub would refuse a question because it has no key.
function needsKey() { return info.api_key_required && apiKey() === "" && !sources.isHere(); }

// Adds empty answers to `question`, side by side.
const answersTo = (question) => store.answersTo(question, sources.numAnswers());

// Adds the question `text` after the message `parent`, by default the last shown message, and starts the answers.
function ask(text, parent) {
  if (!canAsk()) return false;
  const { current } = store;
  const messages = answersTo(store.ask(text, info.model, parent));
  if (idInAddress() !== current.id) history.replaceState(null, "", `#c=${current.id}`);
  answers.begin(current, messages);      // call it before drawThread(), which then draws the message as running
  drawThread();
  return true;
}

function answerAgain(message) {
  if (!canAsk()) return;
  const { current } = store;
  answers.begin(current, answersTo(current.messages.find(({ id }) => id === message.parent)));
  drawThread();
}

// Starts the answer that follows tool calls, when `message` has the results of all its calls.
function answerWithResults(message) {
  if (!canAsk()) return;
  const { current } = store;
  const next = answersTo(message);
  store.save(current, [message]);
  answers.begin(current, next);
  drawThread();
}

// ---- this device

// Applies the chosen place of computation. Switching to the hub frees the memory that the model takes on this device.
function choosePlace() {
  if (sources.isHere() || sources.usesHubToo()) {
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
  element("send").hidden = answers.isRunning;
  element("stop").hidden = !answers.isRunning;
  element("messages").classList.toggle("busy", answers.isRunning);
  element("hint").textContent = hintWords();
}

function hintWords() {
  const { isRunning, conversation } = answers;
  if (isRunning && conversation !== store.current) return say("answering_in", conversation.title);
  if (isRunning && device.waits > 0) return say("waits_for_tab");
  if (!isRunning || !sources.isHere() || !device.is_coming) return say("hint");
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
element("stop").addEventListener("click", () => answers.stop());
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
  answers.stop();
});

// ---- files, and deletion of all data

handleFiles(store, toast);

element("forget").addEventListener("click", async () => {
  if (!await askToForget(say("forget_what", store.conversations.size))) return;
  answers.stop();
  device.end();
  store.keeper.close();
  startAnew(await forgetEverything());
});
listenForForget(() => {
  answers.stop();
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
let is_looking = false;
async function look() {
  if (is_looking) return;
  is_looking = true;
  const answer = await getJson("health").catch(() => null);
  is_looking = false;
  health = answer?.body ?? null;
  if (was_away && health?.status === "ok") answers.askUnanswered();
  was_away = health === null || (was_away && health.status !== "ok");
  answers.see();
  health_status = answer?.status ?? 0;
  drawPool();
}

function drawPool() {
  const is_here = sources.isHere();
  if (health === undefined && !is_here) return;
  const hub_words = is_here ? null : poolWords(health, needsKey());
  const { kind, text, short, welcome } = is_here ? placeWords(device.state)
    : sources.usesHubToo() ? bothWords(panel.settings.place, device.state, hub_words, health === null) : hub_words;
  element("pool").className = `pill ${kind}`;
  element("pool-text").textContent = text;
  element("pool-short").textContent = short;
  element("welcome-words").textContent = welcome;
  const hours = is_here ? 0 : health?.prompts_kept_hours ?? 0;
  element("kept-on-disk").hidden = !(hours > 0);
  element("kept-on-disk").textContent = hours > 0 ? say("kept_on_disk", hours) : "";

  const words = is_here ? null : bannerWords(health, health_status, sources.usesHubToo() && device.ready);
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
  thread.showAnew(store.current, answers.messages);
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
  answers.resumeLeft();
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

  const { ok, body } = await getJson("api/info").catch(() => ({ ok: sources.isHere(), body: keptInfo() }));
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
