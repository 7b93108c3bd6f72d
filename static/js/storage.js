// The browser's storage, for pages and their workers: values, databases, files, caches, locks, messages between tabs,
// the service worker.
//
// Problem: each of these may be missing, may throw (a browser that blocks cookies throws even in `new BroadcastChannel`
// and in the getter `localStorage`), or may never answer (a damaged profile). A page that waits for such a call is dead
// without a word. Solution: pages reach the browser's storage through this module only. Every call ends: with a value,
// with its documented fallback, or within answer_ms_max with a StorageError.
//
// Other programs may share the origin (a proxy may serve the hub below a path), so everything stored here has a name
// that begins with "moex-", and only such names are deleted.
export const answer_ms_max = 5000;
const write_ms_max = 30000;      // a write to a slow disk takes longer than an answer
const own = "moex-";

// A storage call that failed, or that was not answered in time.
export class StorageError extends Error {
  constructor(message, cause) {
    super(message, { cause });
    this.name = "StorageError";
  }
}

// The kinds of storage that did not answer in time, and have not answered since.
const silent = new Set();

// Calls work() and resolves as its promise does. Rejects with a StorageError when that takes longer than `wait_ms`, and
// at once while an earlier call for the same `what` is still without an answer: a page waits only once.
export function bounded(what, work, wait_ms = answer_ms_max) {
  const unanswered = () => new StorageError(`the browser does not answer (${what})`);
  if (silent.has(what)) return Promise.reject(unanswered());
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      silent.add(what);
      reject(unanswered());
    }, wait_ms);
    new Promise((begin) => { begin(work()); }).then(resolve, reject).finally(() => {
      clearTimeout(timer);
      silent.delete(what);
    });
  });
}

// Returns get(), or `fallback` if it throws or returns null.
function attempt(get, fallback) {
  try { return get() ?? fallback; } catch { return fallback; }
}

// ---- values: of this tab (session) and of the browser (local)

const session = attempt(() => globalThis.sessionStorage, null);
const local = attempt(() => globalThis.localStorage, null);

// Reads a value of this tab only, stored as JSON.
export const read = (name, fallback) => attempt(() => JSON.parse(session.getItem(name)), fallback);
// Stores a value of this tab as JSON. Returns false if it could not be stored.
export const write = (name, value) => attempt(() => {
  session.setItem(name, JSON.stringify(value));
  return true;
}, false);
export const drop = (name) => attempt(() => session.removeItem(name));

// Reads a text that the browser keeps for later visits, in all tabs.
export const recall = (name, fallback) => attempt(() => local.getItem(name), fallback);
// Stores a text for later visits. Returns false if it could not be stored: it is then lost with this page.
export const remember = (name, text) => attempt(() => {
  local.setItem(name, text);
  return true;
}, false);

// Returns true if the browser stores texts for later visits.
export const canRemember = () => attempt(() => {
  const probe = `${own}probe`;
  local.setItem(probe, "");
  local.removeItem(probe);
  return true;
}, false);

const dropOwn = (area) => attempt(() => {
  for (const name of Object.keys(area)) if (name.startsWith(own)) area.removeItem(name);
});
export const dropTabValues = () => dropOwn(session);
export const dropValues = () => dropOwn(local);

// ---- messages between tabs

// Opens a channel to the other tabs of this site. Returns {post(message), close()}; without channels in this browser,
// both do nothing.
export function openChannel(name, onMessage) {
  const channel = attempt(() => new BroadcastChannel(name), null);
  if (channel) channel.onmessage = ({ data }) => onMessage(data);
  return {
    post: (message) => attempt(() => channel.postMessage(message)),
    close: () => attempt(() => channel.close()),
  };
}

// ---- locks

// Returns true if this browser has locks at all; they may still be forbidden.
export const mayLock = () => Boolean(attempt(() => navigator.locks, null));
async function hasLocks() {
  if (!mayLock()) return false;
  return bounded("locks", () => navigator.locks.query()).then(() => true, () => false);
}

// Calls work(lock) while this tab holds the lock `name`, and resolves to its result. `how`: the options of
// navigator.locks.request(); with `ifAvailable`, `lock` is null while another tab holds the lock. In a browser without
// locks, or that forbids them, work() runs at once with `lock` undefined.
export async function withLock(name, how, work) {
  if (!await hasLocks()) return work(undefined);
  let has_begun = false;
  try {
    return await navigator.locks.request(name, how, (lock) => {
      has_begun = true;
      return work(lock);
    });
  } catch (error) {
    if (has_begun || error.name === "AbortError") throw error;
    return work(undefined);
  }
}

// ---- databases

export const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
const finished = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onerror = () => reject(transaction.error);
  transaction.onabort = () => reject(transaction.error ?? new StorageError("the browser gave up the write"));
});

// Opens a database whose one table is `table`, made by makeTable(database) at first use. Rejects if the browser refuses
// it, or does not answer.
export function openDatabase(name, makeTable) {
  return bounded(`database ${name}`, async () => {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => makeTable(request.result);
    const database = await done(request);
    // Close the database when another tab deletes all data: an open database would block the deletion.
    database.onversionchange = () => database.close();
    return database;
  });
}

// Calls act(table) in a transaction of `database`, and resolves to the result of the request that act() returns, if it
// returns one. For "readwrite", it resolves when the transaction is on the disk.
export function inTable(database, table, mode, act) {
  return bounded(`database ${database.name}`, async () => {
    const transaction = database.transaction(table, mode);
    const ended = mode === "readwrite" ? finished(transaction) : null;
    ended?.catch(() => {});
    const request = act(transaction.objectStore(table));
    const result = request ? await done(request) : undefined;
    await ended;
    return result;
  }, write_ms_max);
}

// Another tab that has the database open closes it soon; until then the request is blocked.
export const dropDatabase = (name) => bounded(`database ${name}`, () => done(indexedDB.deleteDatabase(name)));

// ---- files, and how much the browser stores

// Returns true if this browser has private files for sites at all; they may still be forbidden.
export const mayStoreFiles = () => Boolean(attempt(() => navigator.storage.getDirectory, null));
// Resolves to the folder of this site's private files. Rejects if the browser stores no files for pages.
export function fileRoot() {
  return bounded("files", () => {
    if (!mayStoreFiles()) throw new StorageError("this browser stores no files for pages");
    return navigator.storage.getDirectory();
  });
}

// Resolves to {usage, quota} in bytes, or to null if the browser does not report them.
export const roomForFiles = () => bounded("room", () => navigator.storage.estimate()).catch(() => null);
// Asks the browser not to delete this site's data when the disk runs low. Resolves to its answer, true or false. The
// browser may ask the user, so this wait has no bound.
export const askToStay = async () => (
  await attempt(() => navigator.storage.persist(), null)?.catch(() => false) ?? false);
export const mayStay = () => bounded("room", () => navigator.storage.persisted()).catch(() => false);

// ---- caches of whole replies

// Resolves to the names that begin with `prefix`, [] without caches.
export const cacheNames = (prefix = own) => bounded("caches", () => caches.keys())
  .then((names) => names.filter((name) => name.startsWith(prefix)), () => []);
export const openCache = (name) => bounded(`cache ${name}`, () => caches.open(name));
export const dropCache = (name) => bounded(`cache ${name}`, () => caches.delete(name));

// ---- the service worker of this site

// A browser that refuses a page its values (cookies are blocked) refuses service workers, too, and Firefox logs each
// refused call as an error of the page.
export const hasServiceWorker = () => (
  local !== null && attempt(() => Boolean(navigator.serviceWorker && globalThis.caches), false));

// Registers the script at `url` and resolves to the active service worker.
export function startServiceWorker(url) {
  return bounded("service worker", async () => {
    const registration = await navigator.serviceWorker.register(url);
    return registration.active ?? (await navigator.serviceWorker.ready).active;
  }, write_ms_max);
}

// Resolves to the active service worker of `url`, or to null.
export const findServiceWorker = (url) => bounded("service worker", async () => (
  (await navigator.serviceWorker.getRegistration(url))?.active ?? null));

// Removes the service workers that serve `url` or paths below it.
export async function dropServiceWorkers(url) {
  if (!hasServiceWorker()) return;
  const all = await bounded("service worker", () => navigator.serviceWorker.getRegistrations());
  const ours = all.filter(({ scope }) => scope.startsWith(url));
  await Promise.all(ours.map((one) => bounded("service worker", () => one.unregister())));
}
