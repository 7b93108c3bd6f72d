// Where a tab's experts lie between visits, as blobs.js asks for them: files by hash, read here (File.slice, which
// needs no handle and waits for nobody), written by a worker of its own (store_worker.js). Whoever reads verifies. What
// goes wrong is counted for the page, in `told`; without a store (a private window) the tab serves all the same.
import { StoreFolder, unlessGone } from "./store_folder.js";

const earlier_cache = "moex-weights-v1";      // as in store_worker.js
const used_every_ms = 2000;                   // what was used is told to the worker that writes

export class ExpertFiles {
  // `onTold()`: another sentence for the page.
  constructor(onTold = () => {}) {
    this.onTold = onTold;
    this.told = {
      kept: 0, unkept: 0,                     // written since this worker began; and not
      is_full: false, device_bytes: 0,        // and what of the room the model of "this device" has
      made_room: 0,                           // blobs that went for others
      damaged: 0, gone: 0, failed: "",
    };
    this.here = new Set();                    // what was seen or written
    this.unkept = new Set();
    this.used = new Map();                    // hex -> [bytes, uses], not told yet
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
    const has_earlier = await globalThis.caches?.has(earlier_cache).catch(() => false);
    this.earlier = has_earlier ? await caches.open(earlier_cache) : null;
    this.writer = new Worker(new URL("./store_worker.js", import.meta.url), { type: "module", name: "moex-store" });
    this.writer.onmessage = ({ data }) => this.hear(data);
    this.writer.onerror = (event) => {
      this.tell({ failed: event.message || "its program did not load" });
      for (const ticket of this.puts.keys()) this.hear({ ticket });
      this.writer = null;
    };
    if (this.model) this.writer.postMessage({ type: "serves", model: this.model });
  }

  tell(more) {
    Object.assign(this.told, more);
    this.onTold();
  }

  // Of the model that is served: others make room first.
  serves(model) {
    this.model = model;
    this.writer?.postMessage({ type: "serves", model });
  }

  // The bytes of a file as they lie there, not verified; null where there is none.
  async read(hex, size) {
    await this.open();
    const file = await this.fileOf(hex).catch(unlessGone);
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
  // What an earlier version kept is taken over when it is asked for.
  async readEarlier(hex) {
    const url = new URL(`/weights/${hex}`, self.location.origin).href;
    const stored = await this.earlier?.match(url).catch(() => null);
    if (!stored) return null;
    const bytes = await stored.arrayBuffer().catch(() => new ArrayBuffer(0));
    await this.earlier.delete(url).catch(() => false);
    return new Uint8Array(bytes);
  }
  isHere(hex) { return this.here.has(hex); }

  // It did not verify.
  async drop(hex) {
    this.here.delete(hex);
    this.tell({ damaged: this.told.damaged + 1 });
    await this.folder?.remove(hex);
  }

  // It was asked for: who is asked for least leaves first, and comes last.
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

  // Resolves when verified bytes are on the disk, or are not kept.
  async put(hex, bytes) {
    await this.open();
    if (!this.writer) return;
    this.tellUsed();
    const answer = await this.ask({ type: "put", hex, bytes });
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
  // What was used lately is written down: before the tab goes.
  async save() {
    this.tellUsed();
    if (this.writer) await this.ask({ type: "save" });
  }

  ask(message) {
    const ticket = this.tickets += 1;
    this.writer.postMessage({ ...message, ticket });
    return new Promise((resolve) => { this.puts.set(ticket, resolve); });
  }
  hear({ ticket, ...answer }) {
    this.puts.get(ticket)?.(answer);
    this.puts.delete(ticket);
  }
}
