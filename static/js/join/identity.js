// The tab's identity for the hub: the join token of its link, and a key by which the hub recognises this browser.
import { read, recall, remember, write } from "/js/storage.js";

// Takes the token from the URL fragment, which is never sent to a server, removes it from the address bar, and keeps it
// in this tab.
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return read("moex-token", "");
  write("moex-token", token);
  history.replaceState(null, "", location.pathname);
  return token;
}

// A join link that is opened in a tab of this page changes only the URL fragment: reload to use its token.
addEventListener("hashchange", () => new URLSearchParams(location.hash.slice(1)).get("token") && location.reload());

// The number of this tab among the browser's tabs: the first free number, which is locked until the page closes.
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
  } catch { slot = crypto.randomUUID(); }      // locks are forbidden: use a random slot
}

// Returns the key by which the hub recognises this browser after a reload; the key has no other use. A key allows one
// connection, so each tab has its own key.
export async function workerKey() {
  await takeSlot();
  let key = recall("moex-worker-key", "");
  if (!key) {
    const random = crypto.getRandomValues(new Uint8Array(16));
    key = Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
    remember("moex-worker-key", key);
  }
  return slot === 0 ? key : `${key}-${slot}`;
}
