// Everything that this site keeps in a browser, and its end: conversations, settings, keys, the join token, weights.
// Other tabs of this site hear of it, drop what only they can reach, and begin anew.
import { confirmIn, element } from "/js/dom.js";
import { say } from "/js/words/shared.js";

const channel_name = "moex-forget";
const folders = ["moex-models"];      // of files: what "this device" computes with
const databases = ["moex-chat", "moex-identity"];
const told_as = "moex-forgotten";

// One a page: a channel hears what another channel of the same page says, and the page that forgets would leave before
// it has forgotten.
let channel = null;
const channelOfPage = () => {
  if (!channel && globalThis.BroadcastChannel) channel = new BroadcastChannel(channel_name);
  return channel;
};

function dropTab() {
  try { sessionStorage.clear(); } catch { /* nothing was kept */ }
}

// Call once per page. `onForget()` runs in the other tabs before they reload.
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
  request.onblocked = () => {};      // a tab that still holds it lets go in a moment
});

// A tab that loads a model just now holds a file: it hears of this, lets go, and the folder is asked for once more.
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

// The page's own files, kept for the time without the hub: nobody gives them from then on.
async function dropPages() {
  const registrations = await navigator.serviceWorker?.getRegistrations() ?? [];
  await Promise.all(registrations.map((one) => one.unregister()));
}

// Resolves to whether all of it is gone.
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

// The question before it, in a page that has the dialog's markup: `what` is what goes. Resolves to whether it may.
export function askToForget(what) {
  element("forget-what").textContent = what;
  return confirmIn(element("forget-dialog"), element("forget-yes"), element("forget-no"));
}

// After it the page begins anew, and says once what became of it.
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
