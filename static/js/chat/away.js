// Makes the chat page usable without its hub, for users that compute "on this device": a service worker keeps its files
// (/service_worker.js), and this module keeps the hub's last info.
import { recall, remember } from "/js/storage.js";

const info_kept_as = "moex-info";

// Runs `run` after all earlier calls have finished, so that the stored page is not removed while it is being stored.
let last = Promise.resolve();
function behindLast(run) {
  last = last.then(run, run);
  return last;
}

async function keep() {
  await navigator.serviceWorker.register("/service_worker.js");
  const { active } = await navigator.serviceWorker.ready;
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = ({ data }) => resolve(data);
    active.postMessage({ keep: true, hub_key: recall("moex-hub-key", "") }, [port2]);
  });
}

async function letGo() {
  const registrations = await navigator.serviceWorker.getRegistrations();
  await Promise.all(registrations.map((one) => one.unregister()));
  const names = (await caches.keys()).filter((name) => name.startsWith("moex-page-"));
  await Promise.all(names.map((name) => caches.delete(name)));
  return false;
}

// Stores the page. Resolves to true if the page can now be opened without the hub. `info`: the reply of /api/info, null
// if the hub does not answer.
export async function keepPage(info) {
  if (!navigator.serviceWorker || !window.caches) return false;
  if (info) remember(info_kept_as, JSON.stringify(info));
  const is_fresh = await behindLast(keep).catch(() => false);
  return is_fresh || caches.keys().then((names) => names.some((name) => name.startsWith("moex-page-")));
}
export async function letGoOfPage() {
  if (navigator.serviceWorker && window.caches) await behindLast(letGo).catch(() => {});
}

// Returns the stored reply of /api/info, or null if none is stored.
export function keptInfo() {
  try { return JSON.parse(recall(info_kept_as, "null")); } catch { return null; }
}
