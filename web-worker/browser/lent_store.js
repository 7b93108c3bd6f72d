// The files of the model of "this device", for a SharedWorker. It has no sync access handles, and it cannot start
// workers: it reads files itself, and a tab lends it a Dedicated Worker that writes them (lent_store_worker.js). If
// that tab is closed in the middle of a download, the next tab goes on where it ended.
import { FileStore, StoreError } from "./file_store.js";
import { StoreFolder, list_name } from "./store_folder.js";

export class LentStore extends FileStore {
  // `lend()` resolves to {port, gone}, the port to a worker that a tab lends, and a promise for the end of that tab.
  static async open(lend) {
    const store = new LentStore(await StoreFolder.open());
    store.lend = lend;
    await store.folder.adopt();
    return store;
  }

  async fetchAll(files, { signal, has, progress, ...how }) {
    if ((await this.missing(files)).bytes > 0) {
      await this.call("fetchAll", [files, how], { signal, hear: (name, value) => ({ has, progress })[name](value) });
    }
    for (const { sha256 } of files) has(sha256);
  }
  async keepOnly(list) {
    const kept = await this.folder.readText(list_name).catch(() => "");
    if (kept !== JSON.stringify(list)) await this.call("keepOnly", [list]);
  }

  // Lets a lent worker call a function of FileStore; with another worker, if the first one's tab is gone.
  async call(name, args, { signal = null, hear = () => {} } = {}) {
    for (;;) {
      const { port, gone } = await this.lend();
      const told = await new Promise((resolve) => {
        gone.then(() => resolve({ is_gone: true }));
        port.onmessage = ({ data }) => (data.done || data.error ? resolve(data) : hear(data.name, data.value));
        signal?.addEventListener("abort", () => port.postMessage({ stop: true }));
        port.postMessage({ name, args });
      });
      port.close();
      if (told.is_gone && !signal?.aborted) continue;
      if (told.done) return;
      const { code, message, name: kind } = told.error ?? { message: "stopped", name: "AbortError" };
      throw code ? new StoreError(code, message) : new DOMException(message, kind);
    }
  }

  // ---- synchronous reads

  async openOne({ name, sha256 }) {
    const file = await this.folder.find(sha256);
    if (!file) throw new StoreError("unavailable", `${name} is missing in this browser: load it again`);
    this.handles.set(sha256, await file.getFile());
  }
  size(sha256) { return this.handles.get(sha256)?.size ?? -1; }
  read(sha256, offset, to) {
    const file = this.handles.get(sha256);
    if (!file) return -1;
    const bytes = new FileReaderSync().readAsArrayBuffer(file.slice(offset, offset + to.length));
    to.set(new Uint8Array(bytes));
    return bytes.byteLength;
  }
  closeAll() {
    this.handles.clear();
    this.free();
  }
}
