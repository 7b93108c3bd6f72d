// The one model of "this device": downloads the hub's model into the browser's files, loads it onto the GPU, or into
// the memory of the processor where there is no GPU, and answers one question at a time. model_desk.js lets tabs share
// it.
// Reports: {looked: {name, bytes, missing_bytes, hub_key, on_processor}}, {fetched: {done_bytes, all_bytes}}, {pages:
//   the report of page_files.js}, and the reports of local_tab.cpp: {opened}, {early}, {progress}, {ready}, {text},
//   {ended}, {refused}, {failed: {code, message}}; before an answer {placed: "here" | "handed" | "hub" | "refined",
//   ...}, where "refined" means that this device writes a draft and the hub the better answer, and "hub" that the hub
//   answers, with the keys and values `sent_as` that this device has sent, if there are any, and that only {ended:
//   {is_hubs: true}} follows
// The model is opened when the files that all layers need are here; the experts of layers follow in order, while later
// ones are still on their way. A question may be asked from {opened} on.
import createModule from "./moex-local.js";
import { Arrivals } from "./arrivals.js";
import { EvictedPages } from "./evicted_pages.js";
import { StoreError } from "./file_store.js";
import { gpuProblem, hasGpu } from "./gpu.js";
import { HandOff } from "./hand_off.js";
import { Host } from "./host.js";
import { checkHub, hasSignedManifest } from "./hub_key.js";
import { PageFiles, behindHash } from "./page_files.js";
import { processorBytes, processorProblem } from "./processor_memory.js";
import { BrowserText } from "./text.js";

const package_url = new URL("../api/package", import.meta.url).href;
let had_gpu = false;             // a model was ready on the GPU: a GPU that is away for a moment comes back
const list_ms_max = 2000;        // a hub that does not answer in time is taken to have the same model
const decoder = new TextDecoder();

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

// Asks the hub for its list of files. Resolves to null if it cannot be reached.
function askList(key, signal = null) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  return fetch(package_url, { headers, signal, cache: "no-store" }).catch(() => null);
}

// Returns the hub's list of files. If the hub cannot be reached, the list that it last sent is used.
async function list(store, key, hub_key) {
  const response = await askList(key);
  const kept = response ? null : await store.keptList();
  if (kept) return kept;
  if (!response) throw new StoreError("unavailable", "the hub cannot be reached");
  const body = await response.json().catch(() => null);
  if (response.ok) return signedList(ofTab(body), hub_key);
  throw new StoreError(response.status === 401 || response.status === 403 ? "unauthorized" : "unavailable",
    body?.error?.message ?? `the hub answered ${response.status}`);
}

// Loads one model and answers with it. It begins at once, and it ends with end(), or after it has reported {failed}.
export class LocalModel {
  // `openStore()` resolves to the store of the files; `mayWrite()` is true while pages of conversations may be written.
  constructor({ openStore, report, mayWrite }) {
    Object.assign(this, { openStore, mayWrite });
    this.report = (message) => { if (!this.has_ended) report(message); };
    this.has_ended = false;
    this.host = new Host();
    this.store = null;
    this.evicted = new EvictedPages();
    this.listed = null;         // the hub's list of the model's files (/api/package)
    this.on_processor = false;  // there is no GPU
    this.onOpened = () => {};   // called when the model is open
    this.is_fetching = false;   // files are being downloaded
    this.routed = null;         // the last report of mx_route()
    this.turns = null;          // MessageChannel of askForTurn()
    this.is_hubs = false;       // the hub answers the question; the end of the one that was given up is not reported
    this.stop = new AbortController();
    this.connect();
  }

  // Connects the WASM program with the files and with the hub.
  connect() {
    const { host } = this;
    this.hand_off = new HandOff({
      route: (facts) => {
        host.withText(JSON.stringify(facts), (address, size) => host.wasm._mx_route(address, size));
        return this.routed;
      },
      takePage: (bytes) => this.takePage(bytes, true),
      held: () => host.wasm._mx_held_tokens(),
      readPage: (before, index, num_tokens, as_u8) => this.pages.readHeld(before, index, num_tokens, as_u8),
    });
    this.pages = new PageFiles({
      takePage: (before, page) => this.takePage(behindHash(before, page), false),
      endOfPages: () => host.wasm._mx_on_pages_end(),
      readPage(before, turn, index, num_tokens, is_state) {
        host.withBytes(before,
          (address, size) => host.wasm._mx_read_page(address, size, turn, index, num_tokens, is_state));
      },
      readHeldPage(before, index, num_tokens, as_u8) {
        host.withBytes(before,
          (address, size) => host.wasm._mx_read_held_page(address, size, index, num_tokens, as_u8));
      },
      mayWrite: this.mayWrite,
    }, (pages) => this.report({ pages }), (tokens) => this.place(tokens));
    Object.assign(host.mx, {
      findPages: (tokens, first_page, state_after) => { this.pages.find(tokens, first_page, state_after); },
      keepPages: (turn, tokens, states) => this.pages.keep(turn, tokens, states),
      pageRead: (bytes) => this.pages.given(bytes),
      writeEvicted: (page, bytes, num_layers) => {
        this.answerEvicted(this.evicted.write(page, bytes, num_layers).then(() => new Uint8Array(1)));
      },
      readEvicted: (layer, pages, size) => this.answerEvicted(this.evicted.read(layer, pages, size)),
      askForTurn: () => this.askForTurn(),
      fileSize: (hex) => this.store.size(decoder.decode(hex)),
      readFile: (hex, offset, to) => this.store.read(decoder.decode(hex), offset, to),
      report: (json) => this.hear(JSON.parse(decoder.decode(json))),
    });
  }

  // Gives the WASM program on a processor a later turn of this worker's event loop. A message to oneself comes behind
  // those that wait already, and without the delay that timers have.
  askForTurn() {
    if (!this.turns) {
      this.turns = new MessageChannel();
      this.turns.port1.onmessage = () => { if (!this.has_ended) this.host.wasm._mx_on_turn(); };
    }
    this.turns.port2.postMessage(null);
  }

  // Gives the WASM program the bytes that `reading` resolves to; none if it fails.
  async answerEvicted(reading) {
    const bytes = await reading.catch((error) => {
      console.error("evicted pages:", error);
      return new Uint8Array(0);
    });
    if (!this.has_ended) this.host.withBytes(bytes, (address, size) => this.host.wasm._mx_on_evicted(address, size));
  }

  // Gives the WASM program a page behind the hash of what is before it. `from_hub`: the hub computed it.
  takePage(bytes, from_hub) {
    const { host } = this;
    let taken = 0;
    host.withBytes(bytes, (address, size) => { taken = host.wasm._mx_on_page(address, size, from_hub); });
    return ["refused", "partly", "wholly"][taken];
  }

  // Says where the answer is computed, before the first word of it.
  async place(tokens) {
    const where = await this.hand_off.place(tokens);
    this.is_hubs = where === "hub";
    this.report({ placed: where, ...this.hand_off.result });
    if (this.is_hubs) this.host.wasm._mx_local_cancel();
  }

  // Passes on a report of the WASM program.
  hear(message) {
    // In a report of the WASM program, no_space means the memory of the GPU or of the processor. A full disk is
    // reported by fail(), or as io_error if pages of a conversation could not be written or read.
    if (message.failed?.code === "no_space") {
      message.failed.code = this.on_processor ? "processor_too_small" : "no_memory";
    }
    if (message.ready || message.failed) this.store?.closeAll();
    if (message.route) {
      this.routed = message.route;
      return;
    }
    if (message.progress && this.is_fetching) return;      // the download takes longer
    if (message.opened) this.onOpened();
    if (message.ended && this.is_hubs) message.ended = { is_hubs: true };
    else if (message.ended) this.hand_off.ended(message.ended);
    if (message.ready && this.on_processor) this.hand_off.useProcessor(message.ready.processor);
    else if (message.ready) {
      had_gpu = true;
      message.ready.gpu_bytes = this.host.gpu.bytes;
    }
    this.report(message);
  }

  // Finds out what has to be downloaded.
  async look({ key, hub_key }) {
    const finding_gpu = hasGpu();
    this.store ??= await this.openStore();
    this.listed = await list(this.store, key, hub_key);
    const { bytes } = await this.store.missing(this.listed.files);
    this.on_processor = !await finding_gpu && !had_gpu;
    // Files that are here already are loaded at once, and loading them finds out the same.
    if (bytes > 0) await this.requireRoom();
    const { name, hub_key: signer = "" } = this.listed;
    const { on_processor } = this;
    this.report({ looked: { name, bytes: this.listed.bytes, missing_bytes: bytes, hub_key: signer, on_processor } });
  }

  // Throws if the model is too large for this device.
  async requireRoom() {
    if (this.on_processor) {
      const why = processorProblem(this.listed.files);
      if (why) throw new StoreError("processor_too_small", why);
      return;
    }
    const problem = await gpuProblem(this.listed.bytes);
    if (problem) throw new StoreError(problem, `it cannot take ${this.listed.bytes} bytes`);
  }

  // Resolves to false if the hub has another model by now.
  async isCurrent({ key }) {
    if (!this.listed) return true;
    const response = await askList(key, AbortSignal.timeout(list_ms_max));
    const body = response?.ok ? await response.json().catch(() => null) : null;
    return !body?.sha256 || body.sha256 === this.listed.sha256;
  }

  // Loads the WASM program: for the GPU, or for the processor, whose program other browsers need not load.
  async loadProgram() {
    const make = this.on_processor ? (await import("./moex-processor.js")).default : createModule;
    await this.host.load(make, import.meta.url, { text: new BrowserText() });
  }

  // `kv_share`: one of so many pages of keys and values has room in the GPU's memory.
  async load({ key, context_tokens_max, kv_share = 1 }) {
    const { host, store, listed } = this;
    const loading = this.loadProgram();
    loading.catch(() => {});       // the rejection is handled below, by `await loading`
    const opened = new Promise((resolve) => { this.onOpened = resolve; });
    const arrivals = new Arrivals();
    const fetching = this.fetchFiles(key, arrivals);
    fetching.catch((error) => arrivals.fail(error));

    const shared = listed.files.filter(({ name }) => !name.startsWith("weights/"));
    await arrivals.all(shared);
    await store.openAll(shared);
    await loading;
    const layers = this.expertsOfLayers();
    const last = layers.findLastIndex((files) => files.length > 0);
    if (last < 0) await fetching;
    const hashes = listed.sha256 + await this.textsHash();
    if (this.has_ended) return;
    host.withText(hashes, (address, size) => (
      host.wasm._mx_local_open(address, size, context_tokens_max, kv_share, processorBytes())));
    await opened;
    for (let layer = 0; layer <= last; layer += 1) {
      await arrivals.all(layers[layer]);
      await store.openMore(layers[layer]);
      if (layer === last) await fetching;      // when the model is ready, it is also stored
      if (this.has_ended) return;
      host.wasm._mx_local_layer(layer);
    }
  }

  // Downloads the missing files, and notes in `arrivals` which ones are here.
  async fetchFiles(key, arrivals) {
    const { store, listed } = this;
    const { bytes: missing_bytes } = await store.missing(listed.files);
    this.is_fetching = missing_bytes > 0;
    let done_bytes = listed.bytes - missing_bytes;
    const began = performance.now();
    await store.fetchAll(listed.files, {
      url: `${package_url}/`, key, signal: this.stop.signal, has: (hash) => arrivals.add(hash),
      progress: (bytes) => {
        done_bytes += bytes;
        this.report({ fetched: { done_bytes, all_bytes: listed.bytes } });
      },
    });
    this.is_fetching = false;
    this.hand_off.downloaded(missing_bytes, performance.now() - began);
    await store.keepOnly(listed);
  }

  // Returns the files of each layer's experts, by the manifest.
  expertsOfLayers() {
    const { store, listed } = this;
    const bytes = new Uint8Array(store.size(listed.sha256));
    store.read(listed.sha256, 0, bytes);
    const { experts } = JSON.parse(decoder.decode(bytes));
    const files = new Map(listed.files.map((file) => [file.sha256, file]));
    return experts.map((hashes) => (hashes ?? []).map((hash) => files.get(hash)).filter(Boolean));
  }

  // Returns the SHA-256 of the model's text files, one behind the other, by which pages name their source.
  async textsHash() {
    const parts = ["tokenizer.json", "tokenizer_config.json"].map((wanted) => {
      const file = this.listed.files.find(({ name }) => name === wanted);
      const bytes = new Uint8Array(file?.bytes ?? 0);
      if (file) this.store.read(file.sha256, 0, bytes);
      return bytes;
    });
    const hash = await crypto.subtle.digest("SHA-256", await new Blob(parts).arrayBuffer());
    return Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  // Begins an answer to the question `body`. `wish`: that of hand_off.js.
  ask({ body, conversation, wish = null }) {
    const { host } = this;
    this.pages.begin(conversation);
    this.hand_off.begin(wish, conversation);
    this.is_hubs = false;
    host.withText(JSON.stringify(body), (address, size) => host.wasm._mx_local_ask(address, size));
  }
  cancel() {
    this.hand_off.cancel();
    this.host.wasm?._mx_local_cancel();
  }

  // `is_on`: the user has agreed that pages of keys and values are kept, or has not.
  remember(is_on) { this.pages.remember(is_on, this.listed.sha256); }
  // A conversation was deleted.
  forget(conversation) {
    this.pages.forget(conversation);
    this.hand_off.forget(conversation);
  }
  // The connection to the hub is another one.
  forgetConnection() { this.hand_off.forgetConnection(); }

  fail(error) {
    this.store?.closeAll();
    const code = error.code === undefined || typeof error.code === "number" ? "internal" : error.code;
    const is_full = error.name === "QuotaExceededError";
    this.report({ failed: { code: is_full ? "no_space" : code, message: error.message ?? String(error) } });
  }

  // Frees the memory of the model; downloaded files stay.
  end() {
    this.has_ended = true;
    this.stop.abort();
    this.pages.remember(false, "");
    this.evicted.close();
    this.store?.closeAll();
    this.host.gpu.close();
    this.turns?.port1.close();
  }
}
