// Keeps the chat page usable without its hub, but only in a browser whose user chose to compute answers "on this
// device" (js/chat/away.js registers and removes it). The network is tried first. Kept files are served when the hub
// cannot be reached, under the same policy: their headers are stored with the bytes. The other files of a kept page
// then come from there at once: behind a proxy, each request for an absent hub may take seconds. Besides, weights that
// the browser's files hold are served from there. Requests for the API and for other pages are not touched. The browser
// may end this program at any moment: what it has in memory only saves time, and without it the same requests go to the
// hub.
// Messages in, with a port for the answer, true or false: {keep: true, hub_key, on_processor}. Until then "busy" is
// sent each second.
// A set of files replaces the stored set only if the hub's key that this browser knows has signed it.
// Every path here begins with `root`, the folder of this file: "/", or "/moex/" where a proxy serves the hub below
// /moex/. Other programs may serve the other paths of the origin, so their caches are left alone.
const root = new URL("./", self.location.href).pathname;
const kept_as = `moex-page-${root}-`;
const kept_folders = ["js/", "css/", "wasm/", "vendor/"].map((folder) => root + folder);
const away = [502, 503, 504];      // a proxy answers so while its hub is away
const isOfPage = (path) => (
  path === root || path === `${root}favicon.svg` || kept_folders.some((one) => path.startsWith(one)));

const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const fromHex = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (digits) => parseInt(digits, 16));
const sha256 = async (bytes) => toHex(await crypto.subtle.digest("SHA-256", bytes));

self.addEventListener("install", () => self.skipWaiting());

// ---- requests of the page: the hub answers them, or else stored files do

// Resolves to the complete sets of stored files. A set is complete if it contains the page itself, which is written
// last.
async function keptSets() {
  const names = (await caches.keys()).filter((name) => name.startsWith(kept_as));
  const sets = await Promise.all(names.map(async (name) => ({ name, cache: await caches.open(name) })));
  const whole = await Promise.all(sets.map(({ cache }) => cache.match(root, { ignoreVary: true })));
  return sets.filter((_, i) => whole[i]);
}

async function keptFile(path) {
  for (const { cache } of await keptSets()) {
    const response = await cache.match(path, { ignoreVary: true });
    if (response) return response;
  }
  return null;
}

const away_ms = 10000;
let away_until = 0;      // the hub could not be reached just now

self.addEventListener("fetch", (event) => {
  const { method, mode, url } = event.request;
  const { origin, pathname, search } = new URL(url);
  if (method !== "GET" || origin !== self.location.origin || search !== "" || !isOfPage(pathname)) return;
  event.respondWith((async () => {
    const stored = mode !== "navigate" && Date.now() < away_until ? await keptFile(pathname) : null;
    if (stored) return stored;
    let error = null;
    const answer = await fetch(event.request).catch((reason) => { error = reason; });
    if (answer && !away.includes(answer.status)) {
      away_until = 0;
      return answer;
    }
    // A page that is left ends its requests, which says nothing of the hub.
    if (error?.name !== "AbortError") away_until = Date.now() + away_ms;
    const kept = await keptFile(pathname) ?? answer;
    if (kept) return kept;
    throw error;
  })());
});

// ---- weights, by ranges, from the folder of web-worker/browser/store_folder.js

// Returns the hash that a request for weights names, or "".
function hashOfWeights(path) {
  const [folder, hash = ""] = path.startsWith(root) ? path.slice(root.length).split("/") : [];
  return folder === "weights" && /^[0-9a-f]{64}$/.test(hash) ? hash : "";
}

// Returns {first, end} of the bytes that `header`, of a Range, asks for; null for ranges that the hub has to answer.
function stretchOf(header, size) {
  if (!header) return { first: 0, end: size };
  const [, from, last] = /^bytes=(\d*)-(\d*)$/.exec(header) ?? [];
  if (from === undefined || (from === "" && last === "")) return null;
  if (from === "") return { first: Math.max(0, size - Number(last)), end: size };
  const end = last === "" ? size : Math.min(size, Number(last) + 1);
  return Number(from) < end ? { first: Number(from), end } : null;
}

// A file has its final name only after it was verified.
async function storedFile(hash) {
  const top = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-models");
  return (await (await top.getDirectoryHandle(hash.slice(0, 2))).getFileHandle(hash)).getFile();
}

async function weights(request, hash) {
  const file = await storedFile(hash).catch(() => null);
  const range = request.headers.get("range");
  const stretch = file && stretchOf(range, file.size);
  if (!stretch) return fetch(request);
  const { first, end } = stretch;
  const headers = {
    "Content-Type": "application/octet-stream", "Content-Length": String(end - first), "Accept-Ranges": "bytes",
    ETag: `"${hash}"`, ...(range ? { "Content-Range": `bytes ${first}-${end - 1}/${file.size}` } : {}),
  };
  return new Response(file.slice(first, end), { status: range ? 206 : 200, headers });
}

self.addEventListener("fetch", (event) => {
  const { origin, pathname, search } = new URL(event.request.url);
  const hash = hashOfWeights(pathname);
  const is_ours = event.request.method === "GET" && origin === self.location.origin && search === "";
  if (hash && is_ours) event.respondWith(weights(event.request, hash));
});

// ---- the registry of sessions: conversations of which pages of keys and values are kept (js/kept_pages.js)

// It is a database of records {conversation, model, pages, expires_at}, without text. Messages in, each with a port:
//   {type: "START_SESSION", sessionId: conversation, payload: {model, pages, expires_at}} -> {type: "ACK", sessionId}
//   {type: "END_SESSION", sessionId}                                                     -> {type: "ACK", sessionId}
//   {type: "GET_SESSIONS"}                -> {type: "SESSIONS", payload: [records]}, without those that have expired
const sessions_name = "moex-sessions", sessions_table = "sessions";

const ended = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

// Calls act(table) in a transaction, and resolves to the result of its request when the transaction is on the disk.
async function inSessions(act) {
  const request = indexedDB.open(sessions_name, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(sessions_table, { keyPath: "conversation" });
  const database = await ended(request);
  try {
    const transaction = database.transaction(sessions_table, "readwrite");
    const written = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    const result = await ended(act(transaction.objectStore(sessions_table)));
    await written;
    return result;
  } finally { database.close(); }
}

async function sessions(now) {
  const all = await inSessions((table) => table.getAll());
  const expired = all.filter(({ expires_at }) => expires_at <= now);
  for (const { conversation } of expired) await inSessions((table) => table.delete(conversation));
  return all.filter((one) => !expired.includes(one));
}

async function answerSession({ type, sessionId, payload = {} }) {
  if (type === "GET_SESSIONS") return { type: "SESSIONS", payload: await sessions(Date.now()) };
  const { model, pages, expires_at } = payload;
  const record = { conversation: sessionId, model, pages, expires_at };
  await inSessions((table) => (type === "START_SESSION" ? table.put(record) : table.delete(sessionId)));
  return { type: "ACK", sessionId };
}

self.addEventListener("message", (event) => {
  const [port] = event.ports;
  if (!port || !["START_SESSION", "END_SESSION", "GET_SESSIONS"].includes(event.data?.type)) return;
  event.waitUntil(answerSession(event.data).then((answer) => port.postMessage(answer), () => port.postMessage(null)));
});

// ---- storing the files of the page

// Returns the paths of the files that a document or a script of this site names: files that it loads at once, and files
// that it may load later.
function namesIn(path, text) {
  const patterns = path === root ? [/<(?:script|link|img)\b[^>]*?(?:src|href)="([^"]+)"/g] : [
    /^(?:import|export)\s(?:[^;]*?\sfrom\s+)?"([./][^"]+)"/gm, /\b(?:import|Worker|URL)\("([./]?[\w/.-]+\.\w+)"/g];
  const names = patterns.flatMap((pattern) => [...text.matchAll(pattern)].map(([, name]) => name));
  return names.map((name) => new URL(name, self.location.origin + path).pathname).filter(isOfPage);
}

// Fetches the hub's current version as {path, hash, response, bytes}. Throws unless the ETag is the hash of the bytes.
async function fetchFile(path) {
  const response = await fetch(path, { cache: "no-cache" });
  const bytes = await response.arrayBuffer();
  const hash = await sha256(bytes);
  const is_whole = response.ok && response.headers.get("etag")?.includes(hash);
  if (!is_whole) throw new Error(`${path} is not what its hash says`);
  const headers = new Headers(response.headers);
  for (const name of ["content-encoding", "content-length"]) headers.delete(name);
  return { path, hash, bytes, response: new Response(bytes, { headers }) };
}

// Fetches the page and all files that it needs. Of the programs for a GPU and for a processor this browser needs one.
async function fetchPage(on_processor) {
  const files = new Map();
  const unneeded = root + (on_processor ? "wasm/moex-local.wasm" : "wasm/moex-processor.js");
  const add = async (path) => {
    if (files.has(path) || path === unneeded) return;
    files.set(path, null);
    const file = await fetchFile(path);
    files.set(path, file);
    const is_ours = path === root || (path.endsWith(".js") && !path.startsWith(`${root}vendor/`));
    if (is_ours) await Promise.all(namesIn(path, new TextDecoder().decode(file.bytes)).map(add));
  };
  await add(root);
  return [...files.values()].sort((a, b) => (a.path < b.path ? -1 : 1));
}

// Throws unless `key`, the hub's key that this browser knows, has signed the files (protocol/PROTOCOL.md,
// "Signatures"). A browser that knows no key checks nothing.
async function requireSigned(files, key) {
  if (!key) return;
  const { pages } = await (await fetch(new URL("api/signature", self.location), { cache: "no-store" })).json();
  const verifier = await crypto.subtle.importKey("raw", fromHex(key), { name: "Ed25519" }, true, ["verify"]);
  const text = new TextEncoder().encode(`MoEx pages 1\n${pages.lines}`);
  const is_signed = await crypto.subtle.verify({ name: "Ed25519" }, verifier, fromHex(pages.signature), text);
  const lines = new Set(pages.lines.split("\n"));
  const nameOf = (path) => `/${path.slice(root.length) || "index.html"}`;
  const isListed = ({ path, hash }) => lines.has(`${nameOf(path)} ${hash}`);
  if (!is_signed || !files.every(isListed)) throw new Error("the known key has not signed these files");
}

// True after a page has deleted all data (js/forget.js): a set that is being fetched must then be deleted as well.
let is_forgotten = false;
try {
  new BroadcastChannel("moex-forget").onmessage = () => { is_forgotten = true; };
} catch { /* a browser that forbids channels has no other tab that deletes data */ }

// Stores the files as one set, named by their hashes, and deletes the previous set.
async function keep({ hub_key, on_processor }) {
  is_forgotten = false;
  const files = await fetchPage(on_processor);
  await requireSigned(files, hub_key);
  const lines = files.map(({ path, hash }) => `${path} ${hash}\n`).join("");
  const name = kept_as + await sha256(new TextEncoder().encode(lines));
  const before = await keptSets();
  if (!before.some((one) => one.name === name)) {
    const cache = await caches.open(name);
    // The page itself, whose path is the shortest, is written last.
    for (const { path, response } of files.slice().reverse()) await cache.put(path, response);
  }
  for (const other of await caches.keys()) {
    if (other.startsWith(kept_as) && (other !== name || is_forgotten)) await caches.delete(other);
  }
}

self.addEventListener("message", (event) => {
  const [port] = event.ports;
  if (!event.data?.keep || !port) return;
  const beat = setInterval(() => port.postMessage("busy"), 1000);
  const kept = keep(event.data).then(() => true, () => false);
  event.waitUntil(kept.then((is_kept) => {
    clearInterval(beat);
    port.postMessage(is_kept);
  }));
});
