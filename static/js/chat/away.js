// The chat page while its hub is away: a service worker keeps its files (/service_worker.js), for whoever computes "on
// this device". What the hub said of itself is kept beside them.
import { recall, remember } from "/js/storage.js";

const info_kept_as = "moex-info";

// One after the other: a page that is kept just now is let go of behind that.
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
    active.postMessage("keep", [port2]);
  });
}

async function letGo() {
  const registrations = await navigator.serviceWorker.getRegistrations();
  await Promise.all(registrations.map((one) => one.unregister()));
  const names = (await caches.keys()).filter((name) => name.startsWith("moex-page-"));
  await Promise.all(names.map((name) => caches.delete(name)));
  return false;
}

// Resolves to whether the page opens without the hub now. `info`: of /api/info, null where the hub is away already.
export async function keepPage(info) {
  if (!navigator.serviceWorker || !window.caches) return false;
  if (info) remember(info_kept_as, JSON.stringify(info));
  const is_fresh = await behindLast(keep).catch(() => false);
  return is_fresh || caches.keys().then((names) => names.some((name) => name.startsWith("moex-page-")));
}
export async function letGoOfPage() {
  if (navigator.serviceWorker && window.caches) await behindLast(letGo).catch(() => {});
}

// null where nothing was kept.
export function keptInfo() {
  try { return JSON.parse(recall(info_kept_as, "null")); } catch { return null; }
}
