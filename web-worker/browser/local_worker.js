// The Dedicated Worker behind "this device" in the chat page: downloads the hub's model into the browser's files, loads
// it onto the GPU, and answers.
// Messages in:  {type: "look", key, hub_key} | {type: "load", key, context_tokens_max}
//               | {type: "ask", body, conversation: id, wish}: `wish` is that of hand_off.js | {type: "cancel"}
//               | {type: "remember", is_on}: the user has agreed that pages of keys and values are kept, or not
//               | {type: "forget", conversation: id}: it was deleted
//               | {type: "connection"}: the connection to the hub is another one
// Messages out: {looked: {name, bytes, missing_bytes, hub_key}}, {fetched: {done_bytes, all_bytes}},
//               {pages: the report of page_files.js}, and the reports of local_tab.cpp: {opened}, {early}, {progress},
//               {ready}, {text}, {ended}, {refused}, {failed: {code, message}}; before an answer {placed: "here" |
//               "handed" | "hub", ...}, where "hub" means that nothing follows and that the hub answers, with the
//               keys and values `sent_as` that this device has sent, if there are any
// The model is opened when the files that all layers need are here; the experts of layers follow in order, while later
// ones are still on their way. A question may be asked from {opened} on.
import createModule from "./moex-local.js";
import { Arrivals } from "./arrivals.js";
import { FileStore, StoreError } from "./file_store.js";
import { gpuProblem } from "./gpu.js";
import { HandOff } from "./hand_off.js";
import { Host } from "./host.js";
import { checkHub, hasSignedManifest } from "./hub_key.js";
import { PageFiles, behindHash } from "./page_files.js";
import { BrowserText } from "./text.js";

const package_url = new URL("../api/package", import.meta.url).href;
const decoder = new TextDecoder();
const host = new Host();
let store = null;
let listed = null;       // the hub's list of the model's files (/api/package)
let onOpened = () => {}; // called when the model is open
let is_fetching = false; // files are being downloaded

let routed = null;       // the last report of mx_route()
let is_hubs = false;     // the hub answers the question; the end of the one that this device gave up is not reported

// Gives the model a page behind the hash of what is before it. `from_hub`: the hub computed it.
function takePage(bytes, from_hub) {
  let taken = 0;
  host.withBytes(bytes, (address, size) => { taken = host.wasm._mx_on_page(address, size, from_hub); });
  return ["refused", "partly", "wholly"][taken];
}

const hand_off = new HandOff({
  route(facts) {
    host.withText(JSON.stringify(facts), (address, size) => host.wasm._mx_route(address, size));
    return routed;
  },
  takePage: (bytes) => takePage(bytes, true),
  held: () => host.wasm._mx_held_tokens(),
  readPage: (before, index, num_tokens, as_u8) => pages.readHeld(before, index, num_tokens, as_u8),
});

// Says where the answer is computed, before the first word of it.
async function place(tokens) {
  const where = await hand_off.place(tokens);
  is_hubs = where === "hub";
  self.postMessage({ placed: where, ...hand_off.result });
  if (is_hubs) host.wasm._mx_local_cancel();
}

const pages = new PageFiles({
  takePage: (before, page) => takePage(behindHash(before, page), false),
  endOfPages: () => host.wasm._mx_on_pages_end(),
  readPage(before, turn, index, num_tokens) {
    host.withBytes(before, (address, size) => host.wasm._mx_read_page(address, size, turn, index, num_tokens));
  },
  readHeldPage(before, index, num_tokens, as_u8) {
    host.withBytes(before, (address, size) => host.wasm._mx_read_held_page(address, size, index, num_tokens, as_u8));
  },
}, (report) => self.postMessage({ pages: report }), place);

Object.assign(host.mx, {
  findPages: (tokens, first_page) => { pages.find(tokens, first_page); },
  keepPages: (turn, tokens) => pages.keep(turn, tokens),
  pageRead: (bytes) => pages.given(bytes),
  fileSize: (hex) => store.size(decoder.decode(hex)),
  readFile: (hex, offset, to) => store.read(decoder.decode(hex), offset, to),
  report(json) {
    const message = JSON.parse(decoder.decode(json));
    // In a report of the WASM program, no_space means the GPU's memory; a full disk is reported by fail() instead.
    if (message.failed?.code === "no_space") message.failed.code = "no_memory";
    if (message.ready || message.failed) store?.closeAll();
    if (message.route) {
      routed = message.route;
      return;
    }
    if (message.progress && is_fetching) return;      // the download takes longer
    if (message.opened) onOpened();
    if (message.ended && is_hubs) return;
    if (message.ended) hand_off.ended(message.ended);
    self.postMessage(message);
  },
});

// Returns `body`, the hub's list of files, with the hub's key. Throws unless the known key has signed its manifest; the
// manifest has the hashes of all other files. With `serve --device-model` it is not the manifest of the served model,
// and the list has its signature (`signed`).
async function signedList(body, hub_key) {
  const hub = await checkHub(new URL("..", import.meta.url), hub_key).catch((error) => {
    throw error.code ? error : new StoreError("unavailable", error.message);
  });
  const { signed } = body;
  const is_signed = signed ? signed.sha256 === body.sha256 && hub.key && await hasSignedManifest(hub, signed)
    : hub.package_sha256 === body.sha256;
  if (hub.key && !is_signed) {
    throw new StoreError("other_hub", "the hub lists another model than the one that it signed");
  }
  return { ...body, hub_key: hub.key ?? "" };
}

// Returns a list of files without those that a tab does not read: the head that drafts tokens, and what predictors of
// experts learned.
function ofTab(body) {
  const read = /^(weights\/.*|manifest\.json|hub\.safetensors|(tokenizer|tokenizer_config|generation_config)\.json)$/;
  const files = body.files.filter(({ name }) => read.test(name));
  return { ...body, files, bytes: files.reduce((sum, { bytes }) => sum + bytes, 0) };
}

// Returns the hub's list of files. If the hub cannot be reached, the list that it last sent is used.
async function list(key, hub_key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(package_url, { headers, cache: "no-store" }).catch(() => null);
  const kept = response ? null : await store.keptList();
  if (kept) return kept;
  if (!response) throw new StoreError("unavailable", "the hub cannot be reached");
  const body = await response.json().catch(() => null);
  if (response.ok) return signedList(ofTab(body), hub_key);
  throw new StoreError(response.status === 401 || response.status === 403 ? "unauthorized" : "unavailable",
    body?.error?.message ?? `the hub answered ${response.status}`);
}

async function look({ key, hub_key }) {
  store ??= await FileStore.open();
  listed = await list(key, hub_key);
  const { bytes } = await store.missing(listed.files);
  // Files that are here already are loaded at once, and loading them finds out the same.
  const problem = bytes > 0 ? await gpuProblem(listed.bytes) : "";
  if (problem) throw new StoreError(problem, `it cannot take ${listed.bytes} bytes`);
  const { name, hub_key: signer = "" } = listed;
  self.postMessage({ looked: { name, bytes: listed.bytes, missing_bytes: bytes, hub_key: signer } });
}

async function load({ key, context_tokens_max }) {
  const loading = host.load(createModule, import.meta.url, { text: new BrowserText() });
  loading.catch(() => {});       // the rejection is handled below, by `await loading`
  const opened = new Promise((resolve) => { onOpened = resolve; });
  const arrivals = new Arrivals();
  const fetching = fetchFiles(key, arrivals);
  fetching.catch((error) => arrivals.fail(error));

  const shared = listed.files.filter(({ name }) => !name.startsWith("weights/"));
  await arrivals.all(shared);
  await store.openAll(shared);
  await loading;
  const layers = expertsOfLayers();
  const last = layers.findLastIndex((files) => files.length > 0);
  if (last < 0) await fetching;
  const hashes = listed.sha256 + await textsHash();
  host.withText(hashes, (address, size) => host.wasm._mx_local_open(address, size, context_tokens_max));
  await opened;
  for (let layer = 0; layer <= last; layer += 1) {
    await arrivals.all(layers[layer]);
    await store.openMore(layers[layer]);
    if (layer === last) await fetching;      // when the model is ready, it is also stored
    host.wasm._mx_local_layer(layer);
  }
}

// Downloads the missing files, and notes in `arrivals` which ones are here.
async function fetchFiles(key, arrivals) {
  const { bytes: missing_bytes } = await store.missing(listed.files);
  is_fetching = missing_bytes > 0;
  let done_bytes = listed.bytes - missing_bytes;
  const began = performance.now();
  await store.fetchAll(listed.files, {
    url: `${package_url}/`, key, has: (hash) => arrivals.add(hash),
    progress(bytes) {
      done_bytes += bytes;
      self.postMessage({ fetched: { done_bytes, all_bytes: listed.bytes } });
    },
  });
  is_fetching = false;
  hand_off.downloaded(missing_bytes, performance.now() - began);
  await store.keepOnly(listed);
}

// Returns the files of each layer's experts, by the manifest.
function expertsOfLayers() {
  const bytes = new Uint8Array(store.size(listed.sha256));
  store.read(listed.sha256, 0, bytes);
  const { experts } = JSON.parse(decoder.decode(bytes));
  const files = new Map(listed.files.map((file) => [file.sha256, file]));
  return experts.map((hashes) => (hashes ?? []).map((hash) => files.get(hash)).filter(Boolean));
}

// Returns the SHA-256 of the model's text files, one behind the other, by which pages name their source.
async function textsHash() {
  const parts = ["tokenizer.json", "tokenizer_config.json"].map((wanted) => {
    const file = listed.files.find(({ name }) => name === wanted);
    const bytes = new Uint8Array(file?.bytes ?? 0);
    if (file) store.read(file.sha256, 0, bytes);
    return bytes;
  });
  const hash = await crypto.subtle.digest("SHA-256", await new Blob(parts).arrayBuffer());
  return Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function fail(error) {
  store?.closeAll();
  const code = error.code === undefined || typeof error.code === "number" ? "internal" : error.code;
  const is_full = error.name === "QuotaExceededError";
  self.postMessage({ failed: { code: is_full ? "no_space" : code, message: error.message ?? String(error) } });
}

self.onmessage = ({ data }) => {
  if (data.type === "look") look(data).catch(fail);
  else if (data.type === "load") load(data).catch(fail);
  else if (data.type === "remember") pages.remember(data.is_on, listed.sha256);
  else if (data.type === "forget") {
    pages.forget(data.conversation);
    hand_off.forget(data.conversation);
  }
  else if (data.type === "ask") {
    pages.begin(data.conversation);
    hand_off.begin(data.wish ?? null, data.conversation);
    is_hubs = false;
    host.withText(JSON.stringify(data.body), (address, size) => host.wasm._mx_local_ask(address, size));
  } else if (data.type === "connection") hand_off.forgetConnection();
  else if (data.type === "cancel") {
    hand_off.cancel();
    host.wasm._mx_local_cancel();
  }
};
// Report an error that a promise did not catch; otherwise the page would wait for ever.
self.addEventListener("unhandledrejection", ({ reason }) => fail(reason ?? new Error("it stopped")));
