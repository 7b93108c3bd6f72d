// Keeps the chat page usable without its hub, but only in a browser whose user chose to compute answers "on this
// device" (js/chat/away.js registers and removes it). The network is always tried first. Kept files are served when the
// hub cannot be reached, under the same policy: their headers are stored with the bytes. Only the page itself and the
// files that its scripts name are handled here; requests for the API and for other pages are not touched.
// Messages in, with a port for the answer, true or false: {keep: true, hub_key}. A set of files replaces the stored set
// only if the hub's key that this browser knows has signed it.
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

self.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  const { origin, pathname, search } = new URL(url);
  if (method !== "GET" || origin !== self.location.origin || search !== "" || !isOfPage(pathname)) return;
  event.respondWith((async () => {
    let error = null;
    const answer = await fetch(event.request).catch((reason) => { error = reason; });
    if (answer && !away.includes(answer.status)) return answer;
    const kept = await keptFile(pathname) ?? answer;
    if (kept) return kept;
    throw error;
  })());
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

// Fetches the page and all files that it needs.
async function fetchPage() {
  const files = new Map();
  const add = async (path) => {
    if (files.has(path)) return;
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
async function keep(hub_key) {
  is_forgotten = false;
  const files = await fetchPage();
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
  event.waitUntil(keep(event.data.hub_key).then(() => port.postMessage(true), () => port.postMessage(false)));
});
