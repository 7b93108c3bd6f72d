// Deletes everything that this site keeps in a browser: conversations, settings, keys, the join token, weights. Other
// tabs of this site are notified, drop the data that only they can reach, and reload.
import { confirmIn, element } from "/js/dom.js";
import { say } from "/js/words/shared.js";

const channel_name = "moex-forget";
const folders = ["moex-models"];      // file folders with experts and the model of "this device"
const databases = ["moex-chat", "moex-identity"];
const told_as = "moex-forgotten";

// Each page has only one channel: a channel receives messages of other channels in the same page, and the deleting page
// would then reload before it has finished.
let channel = null;
const channelOfPage = () => {
  if (!channel && globalThis.BroadcastChannel) channel = new BroadcastChannel(channel_name);
  return channel;
};

function dropTab() {
  try { sessionStorage.clear(); } catch { /* nothing was kept */ }
}

// Reloads this page when another tab deletes all data. Call it once per page; `onForget()` runs before the reload.
export function listenForForget(onForget = () => {}) {
  if (!channelOfPage()) return;
  channelOfPage().onmessage = () => {
    onForget();
    dropTab();
    location.replace(location.pathname);
  };
}

const dropDatabase = (name) => new Promise((resolve) => {
  const request = indexedDB.deleteDatabase(name);
  request.onsuccess = () => resolve(true);
  request.onerror = () => resolve(false);
  request.onblocked = () => {};      // another tab will soon close the database
});

// A tab that is loading a model holds a file open. It is notified and then closes the file, so the deletion is tried
// again.
async function dropFolder(name) {
  const root = await navigator.storage?.getDirectory?.();
  for (let attempts = 20; root; attempts -= 1) {
    try {
      await root.removeEntry(name, { recursive: true });
      return true;
    } catch (error) {
      if (error.name === "NotFoundError") return true;
      if (attempts === 0) return false;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  return true;
}

// Removes the service workers, so that they no longer serve the page's own files without the hub.
async function dropPages() {
  const registrations = await navigator.serviceWorker?.getRegistrations() ?? [];
  await Promise.all(registrations.map((one) => one.unregister()));
}

// Resolves to true if everything was deleted.
export async function forgetEverything() {
  channelOfPage()?.postMessage("forget");
  dropTab();
  try { localStorage.clear(); } catch { /* nothing was kept */ }

  await dropPages().catch(() => {});
  const results = await Promise.allSettled([
    ...databases.map(dropDatabase),
    ...folders.map(dropFolder),
    ...await window.caches?.keys().then((names) => names.map((name) => caches.delete(name))).catch(() => []) ?? [],
  ]);
  return results.every(({ status, value }) => status === "fulfilled" && value !== false);
}

// Asks the user before the deletion, in a page with the dialog's markup; `what` lists the data. Resolves to the answer.
export function askToForget(what) {
  element("forget-what").textContent = what;
  return confirmIn(element("forget-dialog"), element("forget-yes"), element("forget-no"));
}

// Reloads the page after the deletion. The reloaded page shows once whether all data was deleted.
export function startAnew(is_gone) {
  try { sessionStorage.setItem(told_as, is_gone ? "yes" : "partly"); } catch { /* it is not told */ }
  location.replace(location.pathname);
}
export function forgottenWords() {
  let told = "";
  try {
    told = sessionStorage.getItem(told_as) ?? "";
    sessionStorage.removeItem(told_as);
  } catch { /* storage is forbidden: nothing was kept */ }
  if (told === "") return "";
  return say(told === "yes" ? "all_gone" : "partly_gone");
}
