// Pages of keys and values of "this device" that do not fit into the GPU's memory (web-worker/decoder/paged_steps.h):
// files of a folder of "moex-evicted". They are of use to the running model only. So they are encrypted by a key that
// is kept in memory alone, and the files that another model has left are deleted when the next one begins. A file has
// the layers of a page one after the other. Each is sealed on its own (sealed.js), so that one can be read alone. A
// token reads all of these pages, layer by layer, and a read of a file takes longer than its bytes. So the first pages
// also stay in this machine's memory, as far as memory_bytes_max goes. A page that is kept stays until it is written
// again: since each token reads the pages in turn, to replace one by another would bring nothing.
import { canSeal, newCipherKey, seal, unseal } from "./sealed.js";
import { StorageError, bounded, fileRoot, withLock } from "./storage.js";

const evicted_name = "moex-evicted";      // js/forget.js deletes it
const seal_bytes = 28;                    // what seal() adds
const known_gb = globalThis.navigator?.deviceMemory ?? 4;
const memory_bytes_max = Math.min(known_gb, 8) * 2 ** 25;      // 256 MiB where there are 8 GB or more
const lockOf = (name) => `${evicted_name}-${name}`;

// Deletes the folders of models that are gone: each model that is alive holds a lock.
async function dropOthers(all, own) {
  const names = [];
  for await (const name of all.keys()) if (name !== own) names.push(name);
  for (const name of names) {
    await withLock(lockOf(name), { ifAvailable: true }, async (lock) => {
      if (lock !== null) await all.removeEntry(name, { recursive: true }).catch(() => {});
    });
  }
}

// Stores and reads pages. The folder is made by the first write().
export class EvictedPages {
  constructor() {
    this.name = crypto.randomUUID();
    this.opened = null;
    this.is_closed = false;
    this.close = () => { this.is_closed = true; };
    this.kept = new Map();       // page -> bytes of all its layers
    this.kept_bytes = 0;
    this.files = new Map();      // page -> File, until the page is written again
  }

  // Keeps the bytes of a page in memory if there is room. The caller does not change them any more.
  keep(page, bytes) {
    this.kept_bytes -= this.kept.get(page)?.length ?? 0;
    this.kept.delete(page);
    if (this.kept_bytes + bytes.length > memory_bytes_max) return;
    this.kept.set(page, bytes);
    this.kept_bytes += bytes.length;
  }

  async open() {
    if (!canSeal()) throw new StorageError("this page has no cryptography: it is neither HTTPS nor of this machine");
    const closed = new Promise((resolve) => { this.close = () => { this.is_closed = true; resolve(); }; });
    await new Promise((resolve) => { withLock(lockOf(this.name), {}, () => { resolve(); return closed; }); });
    const root = await fileRoot();
    const all = await bounded("files", () => root.getDirectoryHandle(evicted_name, { create: true }));
    await dropOthers(all, this.name);
    this.folder = await all.getDirectoryHandle(this.name, { create: true });
    this.key = await newCipherKey();
    closed.then(() => all.removeEntry(this.name, { recursive: true })).catch(() => {});
  }

  sealedAs(page, layer) { return `${this.name} ${page} ${layer}`; }

  // Stores a page of `num_layers` layers of equal size.
  async write(page, bytes, num_layers) {
    await (this.opened ??= this.open());
    this.files.delete(page);
    this.keep(page, bytes);
    const size = bytes.length / num_layers;
    const layers = await Promise.all(Array.from({ length: num_layers }, (_, layer) => (
      seal(this.key, this.sealedAs(page, layer), bytes.subarray(layer * size, (layer + 1) * size)))));
    const file = await this.folder.getFileHandle(String(page), { create: true });
    if (!file.createSyncAccessHandle) {
      const stream = await file.createWritable();
      await new Blob(layers).stream().pipeTo(stream);
      return;
    }
    const handle = await file.createSyncAccessHandle();
    try {
      handle.truncate(0);
      let at = 0;
      for (const layer of layers) at += handle.write(layer, { at });
      handle.flush();
      if (at !== num_layers * (size + seal_bytes)) throw new DOMException(String(page), "QuotaExceededError");
    } finally {
      handle.close();
    }
  }

  // Resolves to one layer of `pages`, each of `size` bytes, one page after the other.
  async read(layer, pages, size) {
    await this.opened;
    const out = new Uint8Array(size * pages.length);
    await Promise.all(pages.map(async (page, i) => {
      const kept = this.kept.get(page);
      const bytes = kept?.subarray(layer * size, (layer + 1) * size) ?? await this.readFile(layer, page, size);
      out.set(bytes, i * size);
    }));
    return out;
  }

  async readFile(layer, page, size) {
    if (!this.files.has(page)) this.files.set(page, await (await this.folder.getFileHandle(String(page))).getFile());
    const at = layer * (size + seal_bytes);
    const sealed = await this.files.get(page).slice(at, at + size + seal_bytes).arrayBuffer();
    return unseal(this.key, this.sealedAs(page, layer), sealed);
  }
}
