// Deletes everything that this site keeps in a browser: conversations, settings, keys, the join token, weights. Other
// tabs of this site are notified, drop the data that only they can reach, and reload.
import { root } from "./api.js";
import { confirmIn, element } from "./dom.js";
import { pages_name } from "./kept_pages.js";
import {
  bounded, cacheNames, dropCache, dropDatabase, dropServiceWorkers, dropTabValues, dropValues, drop, fileRoot,
  openChannel, read, write,
} from "./storage.js";
import { say } from "./words/shared.js";

const channel_name = "moex-forget";
// file folders: experts and the model of "this device", its pages, and those that left the GPU (evicted_pages.js)
const folders = ["moex-models", pages_name, "moex-evicted"];
const sessions_name = "moex-sessions";            // the registry of service_worker.js, which names those pages
const databases = ["moex-chat", "moex-identity", pages_name, sessions_name];
const told_as = "moex-forgotten";

// Each page has only one channel: a channel receives messages of other channels in the same page, and the deleting page
// would then reload before it has finished.
let channel = null;
let heard = () => {};
const channelOfPage = () => { channel ??= openChannel(channel_name, () => heard()); return channel; };

// Reloads this page when another tab deletes all data. Call it once per page; `onForget()` runs before the reload.
export function listenForForget(onForget = () => {}) {
  heard = () => {
    onForget();
    dropTabValues();
    location.replace(location.pathname);
  };
  channelOfPage();
}

// A tab that is loading a model holds a file open. It is notified and then closes the file, so the deletion is tried
// again.
async function dropFolder(name) {
  const folder = await fileRoot().catch(() => null);
  for (let attempts = 20; folder; attempts -= 1) {
    try {
      await bounded(`folder ${name}`, () => folder.removeEntry(name, { recursive: true }), 60000);
      return true;
    } catch (error) {
      if (error.name === "NotFoundError") return true;
      if (attempts === 0 || error.name === "StorageError") return false;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  return true;
}

// Deletes what "this device" remembers of conversations (kept_pages.js). Its keys go first: without them its files
// cannot be read.
export async function forgetPages() {
  await dropDatabase(pages_name).catch(() => {});
  await dropDatabase(sessions_name).catch(() => {});
  await dropFolder(pages_name);
}

// Resolves to true if everything was deleted.
export async function forgetEverything() {
  channelOfPage().post("forget");
  dropTabValues();
  dropValues();

  // The service worker goes first, so that it no longer serves the page's own files without the hub.
  await dropServiceWorkers(root).catch(() => {});
  const results = await Promise.allSettled([
    ...databases.map(dropDatabase),
    ...folders.map(dropFolder),
    ...(await cacheNames()).map(dropCache),
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
  write(told_as, is_gone ? "yes" : "partly");
  location.replace(location.pathname);
}
export function forgottenWords() {
  const told = read(told_as, "");
  drop(told_as);
  if (told === "") return "";
  return say(told === "yes" ? "all_gone" : "partly_gone");
}
