// Makes the chat page usable without its hub, for users that compute "on this device": a service worker keeps its files
// (/service_worker.js), and this module keeps the hub's last info.
import { at, root } from "../api.js";
import { knownHub } from "../known_hub.js";
import {
  bounded, cacheNames, dropCache, dropServiceWorkers, findServiceWorker, hasServiceWorker, recall, remember,
  startServiceWorker,
} from "../storage.js";

const info_kept_as = "moex-info";
// The service worker of this hub names its sets of files so.
const page_kept_as = `moex-page-${new URL(root).pathname}-`;
const keep_ms_max = 120000;      // the service worker fetches all files of the page
const silent_ms_max = 5000;      // it says each second that it goes on, unless the browser has ended it
const try_ms_max = 3000, tries_max = 3;

// Runs `run` after all earlier calls have finished, so that the stored page is not removed while it is being stored.
let last = Promise.resolve();
function behindLast(run) {
  last = last.then(run, run);
  return last;
}

async function keep(on_processor) {
  const active = await startServiceWorker(at("service_worker.js"));
  const { port1, port2 } = new MessageChannel();
  return bounded("page", () => new Promise((resolve) => {
    let silence = setTimeout(resolve, silent_ms_max, false);
    port1.onmessage = ({ data }) => {
      clearTimeout(silence);
      if (data === "busy") silence = setTimeout(resolve, silent_ms_max, false);
      else resolve(data);
    };
    active.postMessage({ keep: true, hub_key: knownHub(), on_processor }, [port2]);
  }), keep_ms_max);
}

async function letGo() {
  await dropServiceWorkers(root);
  await Promise.all((await cacheNames(page_kept_as)).map(dropCache));
  return false;
}

// Stores the page. Resolves to true if the page can now be opened without the hub. `info`: the reply of /api/info, null
// if the hub does not answer; `on_processor`: this browser computes without a GPU.
export async function keepPage(info, on_processor) {
  if (!hasServiceWorker()) return false;
  if (info) remember(info_kept_as, JSON.stringify(info));
  const is_fresh = await behindLast(() => keep(on_processor)).catch(() => false);
  return is_fresh || (await cacheNames(page_kept_as)).length > 0;
}
export async function letGoOfPage() {
  if (hasServiceWorker()) await behindLast(letGo).catch(() => {});
}

// ---- the registry of sessions, which the service worker keeps, if there is one

// Sends a message to the service worker, and resolves to its answer; to null without one, or if it does not answer. A
// service worker that the browser ends loses the message, which is then sent again; all of them may be sent twice.
async function askServiceWorker(message) {
  if (!hasServiceWorker()) return null;
  const active = await findServiceWorker(root).catch(() => null);
  if (!active) return null;
  for (let tries = 0; tries < tries_max; tries += 1) {
    const { port1, port2 } = new MessageChannel();
    const answer = await new Promise((resolve) => {
      port1.onmessage = ({ data }) => resolve(data);
      setTimeout(resolve, try_ms_max);
      active.postMessage(message, [port2]);
    });
    port1.close();
    if (answer) return answer;
  }
  return null;
}

// Notes what is kept of a conversation: {conversation, model, pages, expires_at}.
export const noteSession = ({ conversation: sessionId, ...payload }) => (
  askServiceWorker({ type: payload.pages > 0 ? "START_SESSION" : "END_SESSION", sessionId, payload }));
// Resolves to the number of conversations of which something is kept, or to null if it is not known.
export const numSessions = async () => (await askServiceWorker({ type: "GET_SESSIONS" }))?.payload.length ?? null;

// Returns the stored reply of /api/info, or null if none is stored.
export function keptInfo() {
  try { return JSON.parse(recall(info_kept_as, "null")); } catch { return null; }
}
