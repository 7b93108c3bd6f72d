// The tab's identity for the hub: the join token of its link, and a key by which the hub recognises this browser.
import { root } from "../api.js";
import { read, recall, remember, withLock, write } from "../storage.js";

const token_kept_as = "moex-token";

// Takes the token from the URL fragment, which is never sent to a server, removes it from the address bar, and keeps it
// in this tab.
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return read(token_kept_as, "");
  write(token_kept_as, token);
  history.replaceState(null, "", location.pathname);
  return token;
}

// Uses the token of another join link from now on, or opens the page of the hub that the link names.
export function useLink({ token, url }) {
  if (url && !url.startsWith(root)) return location.assign(url);
  write(token_kept_as, token);
  return location.reload();
}

// A join link that is opened in a tab of this page changes only the URL fragment: reload to use its token.
addEventListener("hashchange", () => new URLSearchParams(location.hash.slice(1)).get("token") && location.reload());

// The number of this tab among the browser's tabs: the first free number, which is locked until the page closes.
let slot = null;
function lockSlot(number) {
  return new Promise((resolve, reject) => {
    withLock(`moex-worker-${number}`, { ifAvailable: true }, (lock) => {
      if (lock === undefined) throw new Error("this browser has no locks");
      resolve(lock !== null);
      return lock && new Promise(() => {});
    }).catch(reject);
  });
}
async function takeSlot() {
  try {
    for (let number = 0; slot === null; number += 1) if (await lockSlot(number)) slot = number;
  } catch { slot = crypto.randomUUID(); }      // without locks: use a random slot
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
