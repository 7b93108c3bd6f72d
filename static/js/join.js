// The join page: one Start button, then the current state of this tab. The work is done in a Dedicated Worker
// (/wasm/worker.js); the texts are in join/words.js and words/join.js.
import { getJson } from "./api.js";
import { element } from "./dom.js";
import { askToForget, forgetEverything, forgottenWords, listenForForget, startAnew } from "./forget.js";
import { lentMb } from "./device_kind.js";
import { bytes, compact, ms, number } from "./format.js";
import { Arrival } from "./join/arrival.js";
import { Conditions } from "./join/conditions.js";
import { readLink } from "./join/link.js";
import { takeToken, useLink, workerKey } from "./join/identity.js";
import { Threads } from "./join/threads.js";
import { keepAwake } from "./join/wake.js";
import { WorkCard } from "./join/work.js";
import { lendWords, powerWords } from "./join/work_words.js";
import {
  budgetWords, gpuWords, hasEnded, hubWords, keepWords, memoryWords, progressWords, roundWords, shareWords, speedWords,
  stageWords, storeWords, storedWords, wantsLink,
} from "./join/words.js";
import { knownHub, rememberHub } from "./known_hub.js";
import { speakIn } from "./language.js";
import { askToStay, canRemember, drop, mayStay, read, recall, remember, roomForFiles, write } from "./storage.js";
import { say, table } from "./words/join.js";

const budgets_mb = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
const idle_after_ms = 3000;
const look_every_ms = 5000;
const look_pause_ms = 1000;      // the shortest time between two looks
const lends_as = "moex-lends";   // kept in this tab while it lends
const blank = {
  phase: "none", detail: "", bytes_to_fetch: 0, bytes_fetched: 0, units_ready: 0, units_assigned: 0, pairs_answered: 0,
  round_ms_p50: 0, bytes_received: 0, bytes_sent: 0, bytes_downloaded: 0, adapter: {}, model_name: "",
};

speakIn(table, element("language"), () => drawAnew());
const token = takeToken();
let worker = null;
let threads = null;         // the threads that help the worker
let last = null;            // the newest status of the worker
const arrival = new Arrival();
let before = null;          // {time, pairs} of an earlier status, for the rate of answered pairs
let last_call_at = -Infinity;
let nickname = "";          // the name that was sent to the hub
let info = null;            // reply of /api/info
let health = null;          // reply of /health
let is_paused = false;      // true if the contributor clicked on Pause
let waits = "";             // the reason why the contributor's rules pause the worker
let lend = null;            // reply of /api/lend
let room = null;            // {usage, quota} of this site's storage in the browser
let is_kept = null;         // true if the browser has promised to keep the storage; null: not asked
const conditions = new Conditions(() => {
  worker?.postMessage({ type: "mains", on_mains: conditions.onMains() });
  obeyRules();
});
const work = new WorkCard(token, (message) => worker?.postMessage(message));

const powerPercent = () => Number(element("power").value);
const keeps_gb = [0, 1, 2, 4, 8, 16, 32, 64];
// The bytes of experts that stay in main memory when the GPU has no room for them. Main memory is faster than a disk.
const hostBytes = () => Math.min(keepBytes(), 256 * 1024 ** 2);
const keepBytes = () => keeps_gb[element("keep").value] * 1024 ** 3;
const budgetBytes = () => budgets_mb[element("budget").value] * 1024 * 1024;

// ---- display

function draw(status) {
  const idle = status.phase === "serving" && performance.now() - last_call_at > idle_after_ms;
  const words = stageWords(status, {
    idle, waits, is_online: navigator.onLine, now_ms: Date.now(), in_reserve: lend?.worker_state === "reserve",
  });
  element("state").className = `pill ${words.kind}`;
  tell("state", words.state);
  tell("detail", words.detail);
  tell("share", shareWords(status, health?.units));

  drawProgress(status);
  drawButtons(status.phase);
  drawFigures(status);
  tell("gpu", gpuWords(status.adapter, status.no_gpu) || element("gpu").textContent);
  tell("model", status.model_name || "–");
  tell("hub-key", status.hub_key?.fingerprint || "–");
  tell("worker-name", status.worker_id ? say("listed_as", nickname || `#${status.worker_id}`) : "–");
  tell("speed", speedWords(status.speed));
  tell("memory", memoryWords(status));
  drawBudget();
  drawKeep();
  drawStore();
}

// Writes only changed sentences, because screen readers read each write aloud.
function tell(id, text) {
  if (element(id).textContent !== text) element(id).textContent = text;
}

function drawProgress(status) {
  const fetching = status.bytes_to_fetch > 0 && status.bytes_fetched < status.bytes_to_fetch && !hasEnded(status.phase);
  element("progress-box").hidden = !fetching;
  if (!fetching) return;
  element("progress").value = status.bytes_fetched / status.bytes_to_fetch;
  element("progress-text").textContent = progressWords(status, arrival.pace(status.bytes_to_fetch));
}

function drawButtons(phase) {
  const is_idle = hasEnded(phase) || phase === "none";
  // Without another link, starting again would be refused again.
  const needs_link = token === "" || wantsLink(last ?? blank);
  element("link-form").hidden = !needs_link;
  element("start").hidden = !is_idle || needs_link;
  element("start").textContent = say(hasEnded(phase) ? "start_again" : "start");
  element("stop").hidden = is_idle;
  element("pause").hidden = is_idle || phase === "paused";
  element("accept-key").hidden = !(phase === "refused" && last?.hub_key?.state === "other" && last.hub_key.key);
  element("resume").hidden = phase !== "paused" || !is_paused;
}

function drawFigures(status) {
  element("live").hidden = false;
  element("calls").textContent = compact.format(status.pairs_answered);
  element("experts").textContent = `${status.units_ready} / ${status.units_assigned}`;
  element("latency").textContent = ms(status.round_ms_p50);
  element("latency-label").textContent = roundWords(status);
  element("traffic").textContent = `${bytes(status.bytes_received)} / ${bytes(status.bytes_sent)}`;
  element("downloaded").textContent = bytes(status.bytes_downloaded);
  if (conditions.reason() !== waits) obeyRules();
}

function drawBudget() {
  element("budget-value").textContent = bytes(budgetBytes());
  tell("offer", last || !token ? "" : say("offer", bytes(budgetBytes())));
  tell("budget-words", budgetWords(last, budgetBytes(), health?.units));
}

function drawKeep() {
  element("keep-value").textContent = keepBytes() > 0 ? bytes(keepBytes()) : say("keep_none");
  tell("keep-words", keepWords(last, keepBytes(), room?.quota ?? 0));
}

function drawStore() {
  tell("stored", storedWords(room));
  tell("store-words", storeWords(last?.store, is_kept));
  tell("unkept-words", canRemember() ? "" : say("no_values"));
}

function drawPower() {
  element("power-value").textContent = `${powerPercent()} %`;
  tell("power-words", powerWords(powerPercent()));
}

// ---- status reports of the worker

function onStatus(status) {
  if (status.phase !== last?.phase || status.units_ready !== last.units_ready) lookSoon();
  if (status.phase === "serving" && !has_served) openRest();
  if (last && status.pairs_answered > last.pairs_answered) last_call_at = performance.now();
  last = status;
  arrival.add(performance.now(), status.bytes_fetched);
  conditions.count(status.bytes_received + status.bytes_sent + status.bytes_downloaded);
  if (hasEnded(status.phase)) keepAwake(false);
  work.onStatus(status);
  keepHub(status.hub_key);
  draw(status);
  // Publish the status for programs that automate or inspect this page.
  document.documentElement.dataset.phase = status.phase;
  window.moexStatus = status;
}

// Stores the hub's key, unless the worker has refused it.
function keepHub({ state, key } = {}) {
  if (state !== "other" && key && knownHub() !== key) rememberHub(key);
}

function fail(reason) {
  endWorker();
  onStatus({ ...(last ?? blank), phase: "failed", detail: reason });
}

setInterval(() => {
  if (!last) return;
  const now = performance.now();
  if (before) {
    const rate = Math.max(0, (last.pairs_answered - before.pairs) / ((now - before.time) / 1000));
    element("rate").textContent = compact.format(rate);
    element("tokens").textContent = lend?.calls_per_token > 0 ? number.format(rate / lend.calls_per_token) : "–";
  }
  before = { time: now, pairs: last.pairs_answered };
  draw(last);
  obeyRules();
  if (last.phase === "offline") lookSoon();
}, 1000);

// The rest of the page is shown once something works.
let has_served = false;
function openRest() {
  has_served = true;
  element("more").open = true;
}

// ---- start and stop of the worker

// Returns the reason why the tab cannot start at all, which no button can change; "" if it can start.
function obstacle() {
  return window.isSecureContext ? "" : say("insecure");
}

async function start() {
  element("start").disabled = true;
  const [worker_key] = await Promise.all([workerKey(), knowHub()]);
  element("start").disabled = false;
  nickname = element("nickname").value.trim();
  endWorker();
  const started = new Worker(new URL("../wasm/worker.js", import.meta.url), { type: "module", name: "moex" });
  started.onmessage = ({ data }) => { if (worker === started) hear(data); };
  started.onerror = (event) => { if (worker === started) fail(say("worker_failed", event.message)); };
  worker = started;
  threads = new Threads(worker);
  worker.postMessage({
    type: "start", token, nickname, worker_key, hub_key: knownHub(),
    budget_bytes: budgetBytes(), keep_bytes: keepBytes(), host_bytes: hostBytes(),
    power_percent: powerPercent(), on_mains: conditions.onMains(),
    client: info?.version ? `tab ${info.version}` : "tab",
  });
  is_paused = false;
  waits = "";
  write(lends_as, true);
  askToKeep();
  onStatus({ ...blank, phase: "starting" });
  obeyRules();
}

function endWorker() {
  worker?.terminate();
  threads?.endAll();
  worker = threads = null;
}

function hear(message) {
  if (message.type === "thread") return threads.hear(message);
  return message.type === "status" ? onStatus(message.status) : fail(message.reason);
}

// Pauses the worker while one of the contributor's rules requires it, and resumes it afterwards.
function obeyRules() {
  if (!worker || !last || hasEnded(last.phase)) return;
  const reason = conditions.reason();
  if (reason && !waits) worker.postMessage("pause");
  if (!reason && waits && !is_paused) worker.postMessage("resume");
  waits = reason;
  keepAwake(conditions.rules.awake && !reason && !is_paused);
  draw(last);
}

function pauseByHand(on) {
  is_paused = on;
  if (on) worker?.postMessage("pause");
  else if (!waits) worker?.postMessage("resume");
  obeyRules();
}

element("start").addEventListener("click", start);
element("accept-key").addEventListener("click", () => {
  rememberHub(last.hub_key.key);
  start();
});
element("pause").addEventListener("click", () => pauseByHand(true));
element("resume").addEventListener("click", () => pauseByHand(false));
element("stop").addEventListener("click", () => {
  drop(lends_as);
  worker?.postMessage("leave");
  keepAwake(false);
});
element("link-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const link = readLink(element("link").value);
  element("link-problem").textContent = link ? "" : say("bad_link");
  if (link) useLink(link);
});
addEventListener("online", () => worker?.postMessage("online"));
addEventListener("offline", () => last && draw(last));

// A page that is closed, or that the browser freezes in the background, tells the hub that its experts go, so that
// others get them at once. The browser ends the worker with the page, perhaps before the worker has heard of it; so the
// page waits until it has, but not long. A page that comes back lends again.
const leave_ms_max = 100;
const heard = globalThis.SharedArrayBuffer ? new Int32Array(new SharedArrayBuffer(4)) : null;
function leave() {
  if (!worker) return;
  if (heard) Atomics.store(heard, 0, 0);
  worker.postMessage({ type: "leave", heard });
  const until = performance.now() + leave_ms_max;
  while (heard && Atomics.load(heard, 0) === 0 && performance.now() < until);
}
const lendAgain = () => { if (read(lends_as, false) && !obstacle() && token) start(); };
addEventListener("pagehide", leave);
document.addEventListener("freeze", leave);
document.addEventListener("resume", lendAgain);
addEventListener("pageshow", ({ persisted }) => { if (persisted) lendAgain(); });

element("again").checked = recall("moex-again", "") === "yes";
element("again").addEventListener("change", () => remember("moex-again", element("again").checked ? "yes" : ""));

// ---- the contributor's limits, and stored data

element("budget").value = recall("moex-budget", String(budgets_mb.indexOf(lentMb())));
element("budget").addEventListener("input", drawBudget);
element("budget").addEventListener("change", () => {
  remember("moex-budget", element("budget").value);
  worker?.postMessage({ type: "budget", bytes: budgetBytes() });
});
element("keep").value = recall("moex-keep", "0");
element("keep").addEventListener("input", drawKeep);
element("keep").addEventListener("change", () => {
  remember("moex-keep", element("keep").value);
  worker?.postMessage({ type: "keep", bytes: keepBytes(), host_bytes: hostBytes() });
});
element("power").value = recall("moex-power", "100");
element("power").addEventListener("input", drawPower);
element("power").addEventListener("change", () => {
  remember("moex-power", element("power").value);
  worker?.postMessage({ type: "power", percent: powerPercent() });
});
element("nickname").value = recall("moex-nickname", "");
element("nickname").addEventListener("change", () => remember("moex-nickname", element("nickname").value.trim()));

// Asks the browser to keep the stored experts, so that it does not delete them when its disk runs low.
async function askToKeep() {
  is_kept = await askToStay();
  drawStore();
}

async function showStored() {
  room = await roomForFiles();
  if (await mayStay()) is_kept = true;
  drawKeep();
  drawStore();
}

element("forget").addEventListener("click", async () => {
  const is_wanted = await askToForget(say("forget_what"));
  if (!is_wanted) return;
  endWorker();      // a download that ended after the deletion would store data again
  startAnew(await forgetEverything());
});
listenForForget(endWorker);

// ---- start

// Asks the hub which experts it lacks. A token that the hub has refused is not sent again.
async function askWhatIsMissing() {
  if (work.is_refused) return null;
  // The hub's view of this tab: a tab that is connected and ready may still be in reserve.
  const asking = last?.worker_id && !hasEnded(last.phase) ? `?worker=${last.worker_id}` : "";
  const { ok, body } = await getJson(`api/lend${asking}`, token);
  return ok ? body : null;
}

async function knowHub() {
  info ??= await getJson("api/info").then(({ ok, body }) => (ok ? body : null)).catch(() => null);
}

let looked_at = -Infinity;
let look_timer = 0;
// Looks at the hub now, or as soon as a look is due: what the page says of the hub has just become old.
function lookSoon() {
  look_timer ||= setTimeout(look, Math.max(0, looked_at + look_pause_ms - performance.now()));
}

async function look() {
  clearTimeout(look_timer);
  look_timer = 0;
  looked_at = performance.now();
  const [, seen, wants] = await Promise.all([
    knowHub(),
    getJson("health").then(({ body }) => body).catch(() => null),
    work.look().then(askWhatIsMissing).catch(() => null),
  ]);
  health = seen;
  lend = wants;
  if (seen && last?.phase === "offline") worker?.postMessage("online");      // the hub is back
  if (last) draw(last);
  drawHub();
  drawBudget();
  drawKeep();
}

function drawHub() {
  tell("hub-words", hubWords(info, health, lend));
  tell("lend-words", lendWords(lend).join(" "));
}

function drawBeginning(forgotten = "") {
  if (obstacle()) {
    element("state").className = "pill bad";
    element("state").textContent = say("failed");
    element("detail").textContent = obstacle();
  } else if (!token) {
    element("detail").textContent = `${forgotten} ${say("no_token")}`.trim();
  }
  drawButtons("none");
}

function begin() {
  drawBeginning(forgottenWords());
  if (obstacle()) document.documentElement.dataset.phase = "failed";
  element("start").disabled = obstacle() !== "";      // from now on, clicks on Start are handled
  if (element("again").checked) lendAgain();
}

// Draws all texts of the page again after the user has chosen another language.
function drawAnew() {
  if (last) draw(last);
  else drawBeginning();
  drawHub();
  drawBudget();
  drawKeep();
  drawPower();
  conditions.fill();
  obeyRules();
  work.draw();
  showStored();
}

begin();
drawBudget();
drawKeep();
drawPower();
look();
setInterval(look, look_every_ms);
showStored();
setInterval(showStored, 5000);
