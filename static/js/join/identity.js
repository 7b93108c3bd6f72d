// Who this tab is to the hub: the join token of its link, and a key by which the hub knows this browser again.
import { read, recall, remember, write } from "/js/storage.js";

// The token rides in the fragment, which no server sees; it leaves the address bar at once and stays in this tab.
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return read("moex-token", "");
  write("moex-token", token);
  history.replaceState(null, "", location.pathname);
  return token;
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

// Lets the hub recognise this browser after a reload, and nothing else. A key has one connection: each tab has its own.
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
