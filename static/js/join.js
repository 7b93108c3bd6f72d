// The join page: one Start button, then the truth about what this tab does. The work itself is in a Dedicated Worker (/wasm/worker.js).
import { forgetAll, read, recall, remember, write } from "/js/storage.js";

const element = (id) => document.getElementById(id);
const budgets_mb = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
const cache_name = "moex-weights-v1";

let worker = null;
let last = null;            // the newest status
let before = null;          // an older one, for the rate
let wake_lock = null;
let stay_awake = false;
let nickname = "";          // as the hub was told

// The token rides in the fragment, which no server sees; it leaves the address bar at once and stays in this tab.
const fragment = new URLSearchParams(location.hash.slice(1));
const token = fragment.get("token") ?? read("moex-token", "");
if (fragment.get("token")) {
  write("moex-token", token);
  history.replaceState(null, "", location.pathname);
}
// A fresh link opened in the same tab changes the fragment only.
addEventListener("hashchange", () => new URLSearchParams(location.hash.slice(1)).get("token") && location.reload());

// Which of this browser's tabs this is: the first free number, held until the page goes.
let slot = null;
function lockSlot(number) {
  return new Promise((resolve, reject) => {
    navigator.locks.request(`moex-worker-${number}`, { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock && new Promise(() => {});
    }).catch(reject);
  });
}
async function takeSlot() {
  try {
    for (let number = 0; slot === null; number += 1) if (await lockSlot(number)) slot = number;
  } catch { slot = crypto.randomUUID(); }      // locks are forbidden: a place of its own
}

// Lets the hub recognise this browser after a reload, and nothing else. A key has one connection, so each tab has its own.
async function workerKey() {
  await takeSlot();
  let key = recall("moex-worker-key", "");
  if (!key) {
    key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    remember("moex-worker-key", key);
  }
  return slot === 0 ? key : `${key}-${slot}`;
}

// The pages are the hub's own, so its version is this tab's.
async function version() {
  const response = await fetch("/api/info").catch(() => null);
  return response?.ok ? (await response.json()).version : "";
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1000;
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

// phase: [pill's colour, its words, what is said below when the worker gives no detail]
const phases = {
  starting: ["warn", "starting", "Looking for the GPU and preparing its programs."],
  connecting: ["warn", "connecting", "Reaching the hub."],
  downloading: ["warn", "downloading", "Fetching the experts that this tab will hold."],
  warming: ["warn", "checking", "Checking the GPU's results against known answers."],
  serving: ["good", "serving", "This tab answers for its experts."],
  paused: ["", "paused", "The weights stay here; nothing is computed until you resume."],
  offline: ["bad", "offline", "The hub does not answer. This page tries again by itself."],
  gpu_lost: ["bad", "GPU lost", "The browser took the GPU away. This page starts again by itself."],
  refused: ["bad", "refused", "The hub refused this tab."],
  failed: ["bad", "cannot serve", "This browser or GPU cannot serve."],
  stopped: ["", "stopped", "This tab no longer takes part. Thank you."],
};

function whyOffline(status) {
  if (!navigator.onLine) return "This device has no network. The page goes on by itself when it has one again.";
  const seconds = Math.ceil((status.retry_at - Date.now()) / 1000);
  return `${status.detail || phases.offline[2]}${seconds > 1 ? ` Next try in ${seconds} s.` : ""}`;
}

function draw(status) {
  const [kind, words, sentence] = phases[status.phase] ?? ["", status.phase, ""];
  const age_ms = performance.now() - last_call_at;
  const idle = status.phase === "serving" && age_ms > 3000;
  element("state").className = `pill ${kind}`;
  element("state").textContent = idle ? "ready" : words;
  element("detail").textContent = idle ? "The hub has no work just now. Leave the tab open." : status.phase === "offline" ? whyOffline(status) : status.detail || sentence;

  const fetching = status.bytes_to_fetch > 0 && status.bytes_fetched < status.bytes_to_fetch;
  element("progress-box").hidden = !fetching;
  if (fetching) {
    element("progress").value = status.bytes_fetched / status.bytes_to_fetch;
    element("progress-text").textContent = `${bytes(status.bytes_fetched)} of ${bytes(status.bytes_to_fetch)}, ${status.units_ready} of ${status.units_assigned} experts ready`;
  }
  const ended = ["stopped", "refused", "failed"].includes(status.phase);
  element("start").hidden = !ended && status.phase !== "none";
  element("start").textContent = ended ? "Start again" : "Start";
  element("stop").hidden = ended;
  element("pause").hidden = ended || status.phase === "paused";
  element("resume").hidden = status.phase !== "paused";
  element("live").hidden = false;
  element("calls").textContent = compact.format(status.pairs_answered);
  element("experts").textContent = `${status.units_ready} / ${status.units_assigned}`;
  element("latency").textContent = status.round_ms_p50 > 0 ? `${status.round_ms_p50.toFixed(status.round_ms_p50 < 10 ? 1 : 0)} ms` : "–";
  element("traffic").textContent = `${bytes(status.bytes_received)} / ${bytes(status.bytes_sent)}`;
  element("downloaded").textContent = bytes(status.bytes_downloaded);
  const { adapter } = status;
  if (adapter.vendor || adapter.description) {
    element("gpu").textContent = `${[adapter.vendor, adapter.architecture, adapter.description].filter(Boolean).join(" ")}${adapter.software ? " (software: slow, for tests)" : ""}`;
  }
  element("model").textContent = status.model_name || "–";
  element("worker-name").textContent = status.worker_id ? `listed as ${nickname || `#${status.worker_id}`}` : "–";
  // Weights and calls in flight come out of the same limit.
  const in_use = status.device?.buffer_bytes ?? 0;
  element("memory").textContent = in_use > 0
    ? `${bytes(in_use)} of ${bytes(status.budget_bytes)}: ${bytes(status.weights_bytes)} of experts, the rest for calls and experts to come` : "–";
}

let last_call_at = -Infinity;
function onStatus(status) {
  if (last && status.pairs_answered > last.pairs_answered) last_call_at = performance.now();
  last = status;
  if (["stopped", "refused", "failed"].includes(status.phase)) keepAwake(false);
  draw(status);
  // For whoever automates or inspects this page.
  document.documentElement.dataset.phase = status.phase;
  window.moexStatus = status;
}
setInterval(() => {
  if (!last) return;
  const now = performance.now();
  if (before) element("rate").textContent = compact.format(Math.max(0, (last.pairs_answered - before.pairs) / ((now - before.time) / 1000)));
  before = { time: now, pairs: last.pairs_answered };
  draw(last);
}, 1000);

function fail(reason) {
  onStatus({ ...(last ?? blank), phase: "failed", detail: reason });
}
const blank = { phase: "none", detail: "", bytes_to_fetch: 0, bytes_fetched: 0, units_ready: 0, units_assigned: 0, pairs_answered: 0, round_ms_p50: 0,
  bytes_received: 0, bytes_sent: 0, bytes_downloaded: 0, adapter: {}, model_name: "" };

// What stands in the way before anything was tried; no button helps against it.
function obstacle() {
  if (!window.isSecureContext) return "Browsers give the GPU to secure pages only. Open this link over https (the host can start the hub with --tls-cert and --tls-key), or at http://localhost on the hub's own machine.";
  if (!navigator.gpu) return "This browser has no WebGPU. Use a current Chrome, Edge, Firefox or Safari, with hardware acceleration switched on.";
  return "";
}

async function start() {
  element("start").disabled = true;
  const [worker_key, own_version] = await Promise.all([workerKey(), version()]);
  element("start").disabled = false;
  nickname = element("nickname").value.trim();
  worker?.terminate();
  worker = new Worker("/wasm/worker.js", { type: "module", name: "moex" });
  worker.onmessage = ({ data }) => (data.type === "status" ? onStatus(data.status) : fail(data.reason));
  worker.onerror = (event) => fail(`The worker program failed: ${event.message || "it did not load"}. Reload the page; if it happens again, tell the host.`);
  worker.postMessage({
    type: "start", token, nickname, worker_key, client: `tab ${own_version}`.trim(),
    budget_bytes: budgets_mb[element("budget").value] * 1024 * 1024,
  });
  onStatus({ ...blank, phase: "starting" });
  keepAwake(true);
}

// Browsers take the lock back when the page is hidden: it is asked for again when people come back to it.
async function keepAwake(on) {
  stay_awake = on;
  try {
    if (wake_lock?.released) wake_lock = null;
    if (on && !wake_lock) wake_lock = await navigator.wakeLock?.request("screen") ?? null;
    else if (!on && wake_lock) {
      await wake_lock.release();
      wake_lock = null;
    }
  } catch { /* the browser decides; the tab serves all the same */ }
}

element("start").addEventListener("click", start);
addEventListener("online", () => worker?.postMessage("online"));
addEventListener("offline", () => last && draw(last));
document.addEventListener("visibilitychange", () => { if (stay_awake && document.visibilityState === "visible") keepAwake(true); });
element("pause").addEventListener("click", () => worker?.postMessage("pause"));
element("resume").addEventListener("click", () => worker?.postMessage("resume"));
element("stop").addEventListener("click", () => {
  worker?.postMessage("stop");
  keepAwake(false);
});
addEventListener("pagehide", () => worker?.postMessage("stop"));

const budget = element("budget");
function showBudget() { element("budget-value").textContent = bytes(budgets_mb[budget.value] * 1024 * 1024); }
budget.value = recall("moex-budget", "4");
showBudget();
budget.addEventListener("input", showBudget);
budget.addEventListener("change", () => {
  remember("moex-budget", budget.value);
  worker?.postMessage({ type: "budget", bytes: budgets_mb[budget.value] * 1024 * 1024 });
});
element("nickname").value = recall("moex-nickname", "");
element("nickname").addEventListener("change", () => remember("moex-nickname", element("nickname").value.trim()));

async function showStored() {
  const estimate = await navigator.storage?.estimate?.().catch(() => null);
  element("stored").textContent = estimate ? bytes(estimate.usage ?? 0) : "unknown";
}
element("forget").addEventListener("click", async () => {
  worker?.postMessage("stop");
  forgetAll();
  await window.caches?.delete(cache_name).catch(() => {});
  showStored();
});
showStored();
setInterval(showStored, 5000);

element("start").disabled = obstacle() !== "";  // from here on a click is heard
if (obstacle()) {
  element("state").className = "pill bad";
  element("state").textContent = "cannot serve";
  element("detail").textContent = obstacle();
  document.documentElement.dataset.phase = "failed";
} else if (!token) element("detail").textContent = "This link carries no join token: ask the host for the full link.";
