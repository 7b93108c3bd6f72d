// Stores a tab's experts between visits, for blobs.js: one file per hash. This class reads the files itself
// (File.slice, which needs no exclusive handle and blocks no other reader); a thread of its own (store_worker.js)
// writes them. The caller verifies the bytes that it reads. Failures are counted for the page in `told`. In a browser
// that offers no storage (in a private window), the tab serves without storage.
import { bounded, cacheNames, openCache } from "./storage.js";
import { StoreFolder, unlessGone } from "./store_folder.js";

const earlier_cache = "moex-weights-v1";      // cache of an earlier version; store_worker.js has the same name
const put_ms_max = 60000;                     // a write that takes longer counts as failed
const used_every_ms = 2000;                   // interval at which the writing thread is sent the recent uses

// Reads stored blobs, and passes new blobs to the thread that writes them.
export class ExpertFiles {
  // The caller gives `startThread(program, name)`, which starts a thread (page_threads.js) or a Worker and returns it,
  // and `onTold()`, which is called when the counts in `told` have changed, so that the page can show them.
  constructor(startThread, onTold = () => {}) {
    this.startThread = startThread;
    this.onTold = onTold;
    this.told = {
      kept: 0, unkept: 0,                     // counts of blobs that were and were not written
      is_full: false,                         // true if the browser's storage has no room for another blob
      device_bytes: 0,                        // bytes that the model of "this device" occupies on disk
      made_room: 0,                           // count of blobs that were evicted to make room for new blobs
      damaged: 0, gone: 0, failed: "",
    };
    this.here = new Set();                    // hashes of blobs that this worker has read from disk or written
    this.unkept = new Set();
    this.used = new Map();                    // uses not yet sent to the writing thread: hash -> [bytes, uses]
    this.used_timer = 0;
    this.puts = new Map();                    // ticket -> resolve
    this.tickets = 0;
    this.opened = null;
  }

  open() {
    this.opened ??= this.begin().catch((error) => this.tell({ failed: error.message }));
    return this.opened;
  }
  async begin() {
    this.folder = await StoreFolder.open();
    const has_earlier = (await cacheNames(earlier_cache)).length > 0;
    this.earlier = has_earlier ? await openCache(earlier_cache) : null;
    const writer = this.startThread("store_worker.js", "moex-store");
    this.writer = writer;
    writer.onmessage = ({ data }) => this.hear(data);
    writer.onerror = ({ message }) => {
      if (this.writer !== writer) return;      // it has failed before
      this.writer = null;
      writer.terminate();
      this.tell({ failed: message || "its program did not load" });
      for (const ticket of this.puts.keys()) this.hear({ ticket });
    };
    if (this.model) this.writer.postMessage({ type: "serves", model: this.model });
  }

  tell(more) {
    Object.assign(this.told, more);
    this.onTold();
  }

  // Sets the model that is served: blobs of other models are evicted first.
  serves(model) {
    this.model = model;
    this.writer?.postMessage({ type: "serves", model });
  }

  // Returns the bytes of a file as stored, not verified; null if there is no such file.
  async read(hex, size) {
    await this.open();
    const file = await bounded("files", () => this.fileOf(hex)).catch(unlessGone);
    const bytes = file ? await file.slice(0, size + 1).arrayBuffer().catch(() => new ArrayBuffer(0)) : null;
    if (bytes) {
      this.here.add(hex);
      if (this.used.has(hex)) this.used.get(hex)[0] = size;
      return new Uint8Array(bytes);
    }
    if (this.here.delete(hex)) this.tell({ gone: this.told.gone + 1 });
    return this.readEarlier(hex);
  }
  async fileOf(hex) {
    return (await this.folder?.find(hex))?.getFile() ?? null;
  }
  // Returns and removes a blob that an earlier version stored in a cache; null if there is none.
  async readEarlier(hex) {
    const url = new URL(`../weights/${hex}`, import.meta.url).href;
    const stored = await this.earlier?.match(url).catch(() => null);
    if (!stored) return null;
    const bytes = await stored.arrayBuffer().catch(() => new ArrayBuffer(0));
    await this.earlier.delete(url).catch(() => false);
    return new Uint8Array(bytes);
  }
  isHere(hex) { return this.here.has(hex); }

  // Deletes a stored blob that did not verify.
  async drop(hex) {
    this.here.delete(hex);
    this.tell({ damaged: this.told.damaged + 1 });
    await this.folder?.remove(hex);
  }

  // Counts one request for a blob. The blobs with the fewest requests are evicted first.
  use(hex, size) {
    this.used.set(hex, [this.here.has(hex) ? size : 0, (this.used.get(hex)?.[1] ?? 0) + 1]);
    this.used_timer ||= setTimeout(() => this.tellUsed(), used_every_ms);
  }
  tellUsed() {
    clearTimeout(this.used_timer);
    this.used_timer = 0;
    if (!this.writer || this.used.size === 0) return;
    this.writer.postMessage({ type: "used", used: [...this.used].map(([hex, [bytes, uses]]) => [hex, bytes, uses]) });
    this.used.clear();
  }

  // Resolves when the verified `bytes` are on the disk, or when the writing thread reports that they cannot be stored.
  // With `gives_memory` the caller no longer needs them, and they are empty afterwards.
  async put(hex, bytes, { gives_memory = false } = {}) {
    await this.open();
    if (!this.writer) return;
    this.tellUsed();
    const given = gives_memory ? [bytes.buffer] : [];
    const answer = await bounded("writes", () => this.ask({ type: "put", hex, bytes }, given), put_ms_max)
      .catch(({ message }) => ({ reason: message }));
    const { kept = false, gone = [], is_full = false, device_bytes = 0, reason = "" } = answer;
    for (const name of gone) this.here.delete(name);
    if (kept) this.here.add(hex);
    if (kept) this.unkept.delete(hex);
    else this.unkept.add(hex);
    const { told } = this;
    this.tell({
      kept: told.kept + (kept ? 1 : 0), unkept: this.unkept.size, made_room: told.made_room + gone.length,
      is_full: kept ? told.is_full && this.unkept.size > 0 : is_full,
      device_bytes: kept ? told.device_bytes : device_bytes, failed: reason || told.failed,
    });
  }
  // Writes the recent uses to disk; called when the tab stops serving.
  async save() {
    this.tellUsed();
    if (this.writer) await this.ask({ type: "save" });
  }

  ask(message, transfer = []) {
    const ticket = this.tickets += 1;
    this.writer.postMessage({ ...message, ticket }, transfer);
    return new Promise((resolve) => { this.puts.set(ticket, resolve); });
  }
  hear({ ticket, ...answer }) {
    this.puts.get(ticket)?.(answer);
    this.puts.delete(ticket);
  }
}
