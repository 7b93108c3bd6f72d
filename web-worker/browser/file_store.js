// Stores the files of a whole model, in the same folder as the experts (store_folder.js). Files are downloaded in
// ranges, resumed where a download broke, and verified before they get their final name. For Dedicated Workers only,
// because only those can read synchronously (sync access handles).
import { readPieces } from "./pieces.js";
import { sha256OfFile, whole_bytes_max } from "./sha256.js";
import { roomForFiles, withLock } from "./storage.js";
import {
  StoreError, StoreFolder, Uses, leavingOrder, list_name, loading_name, unlessGone,
} from "./store_folder.js";

export { StoreError };

const lock_name = "moex-models";      // lock: only one tab at a time downloads a model
const reading_lock_name = "moex-models-open";

const fetches_max = 4;
const range_bytes = 16 << 20;
// A broken connection is replaced: the first time at once, then after growing delays. After this many attempts in a
// row without a received byte, the download fails and the user decides whether to try again.
const fruitless_max = 6;
const wait_first_ms = 250;
// HTTP statuses of a hub that starts, stops or is overloaded: the download is tried again.
const passing = [429, 502, 503, 504];

// Downloads, stores and reads the files of whole models.
export class FileStore {
  static async open() {
    const store = new FileStore(await StoreFolder.open());
    await store.folder.adopt();
    return store;
  }
  constructor(folder) {
    this.folder = folder;
    this.handles = new Map();     // hash -> handle of an open file
    this.whole_bytes_max = whole_bytes_max;      // larger files are hashed in stretches, more slowly
    this.free = () => {};         // releases the lock under which the files are open
  }

  // Returns the entries of `files` ({name, sha256, bytes}) that have to be downloaded, and the number of missing bytes.
  async missing(files) {
    const sizes = await this.folder.sizes();
    const wanted = files.filter(({ sha256, bytes }) => sizes.get(sha256) !== bytes);
    const left = ({ sha256, bytes }) => bytes - Math.min(bytes, sizes.get(`${sha256}.part`) ?? 0);
    return { files: wanted, bytes: wanted.reduce((sum, file) => sum + left(file), 0) };
  }

  // Downloads the missing files from below `url`, in the order of `files`. `progress(bytes)` is called with the bytes
  // that have arrived; the count is negative for bytes that had to be discarded. `has(hash)` is called when a file is
  // here, perhaps more than once. A lock lets one tab download at a time; the next tab finds the files that are
  // downloaded already.
  fetchAll(files, how) {
    return withLock(lock_name, { signal: how.signal }, async () => {
      for (;;) {
        const missing = await this.missing(files);
        for (const file of files) if (!missing.files.includes(file)) how.has(file.sha256);
        const full = await this.fetchMissing(missing.files, files, how).then(() => null, (error) => {
          if (error.code !== "no_space" && error.name !== "QuotaExceededError") throw error;
          return error;
        });
        if (!full) return;
        const wanted = new Set(files.map(({ sha256 }) => sha256));
        const { left_bytes, lent_bytes } = await this.makeRoom(missing.bytes, wanted);
        const lent = lent_bytes > 0 ? `; experts that this browser lends use ${lent_bytes} bytes and stay` : "";
        if (left_bytes === 0) throw new StoreError("no_space", `${full.message}${lent}`);
      }
    });
  }
  // If the download of a file fails, the downloads of the other files stop; bytes that have arrived are kept.
  async fetchMissing(missing, all, how) {
    await this.checkRoom(missing);
    if (missing.length > 0) await this.folder.writeText(loading_name, JSON.stringify({ files: all }));
    const stop = new AbortController();
    how.signal?.addEventListener("abort", () => stop.abort());
    const waiting = missing.slice();
    const fetchNext = async () => {
      for (let file = waiting.shift(); file; file = waiting.shift()) {
        await this.fetchOne(file, { ...how, signal: stop.signal });
        how.has(file.sha256);
      }
    };
    let failed = null;
    await Promise.all(Array.from({ length: fetches_max }, () => fetchNext().catch((error) => {
      failed ??= error;
      waiting.length = 0;
      stop.abort();
    })));
    if (failed) throw failed;
  }

  async checkRoom(files) {
    const { bytes } = await this.missing(files);
    const { quota = Infinity, usage = 0 } = await roomForFiles() ?? {};
    if (bytes > quota - usage) throw new StoreError("no_space", `${bytes} bytes are needed, ${quota - usage} are free`);
  }
  // Evicts experts of models other than the one that this browser serves, until `bytes` are free. Files in `wanted`
  // are not evicted. Returns the freed bytes, and the bytes of the experts of the served model.
  async makeRoom(bytes, wanted) {
    const uses = new Uses(this.folder);
    await uses.load();
    const { served } = uses.kept;
    const lent = new Map([...uses.names()].map((name) => [name, uses.get(name)]).filter(([, one]) => one.bytes > 0));
    let left_bytes = 0;
    for (const name of leavingOrder(lent, served)) {
      const { model, bytes: size } = lent.get(name);
      if (left_bytes >= bytes || model === served) break;
      if (wanted.has(name)) continue;
      uses.drop(name);
      if (await this.folder.remove(name)) left_bytes += size;
    }
    await uses.save();
    const lent_bytes = [...lent.values()].reduce((sum, one) => sum + (one.model === served ? one.bytes : 0), 0);
    return { left_bytes, lent_bytes };
  }

  async fetchOne(file, how) {
    const part = await this.folder.make(`${file.sha256}.part`);
    const handle = await part.createSyncAccessHandle();
    try {
      await this.fetchRest(file, handle, how);
      handle.truncate(file.bytes);
      handle.flush();
    } finally {
      handle.close();
    }

    if (await sha256OfFile(await part.getFile(), this.whole_bytes_max) !== file.sha256) {
      await this.folder.remove(part.name);
      how.progress(-file.bytes);
      throw new StoreError("hash_mismatch", `${file.name} from the hub does not match its hash`);
    }
    // The move fails if a serving tab has just written the same file and reads it: then the part is not needed.
    await part.move(file.sha256).catch(async (error) => {
      if (!await this.folder.remove(part.name) || !await this.folder.find(file.sha256)) throw error;
    });
  }

  // Downloads the rest of a file after the bytes that `handle` has. When a connection breaks, received bytes are kept
  // and not requested again.
  async fetchRest(file, handle, how) {
    let have = handle.getSize();
    if (have > file.bytes) have = 0;
    const write = (bytes) => {
      const written = handle.write(bytes, { at: have });      // writes only a part of `bytes` at the end of the quota
      if (written !== bytes.length)
        throw new StoreError("no_space", `the browser stores no more bytes of ${file.name}`);
      have += bytes.length;
      how.progress(bytes.length);
    };

    for (let fruitless = 0; have < file.bytes;) {
      const before = have;
      const broke = await this.fetchRange(file, have, write, how);
      fruitless = have > before ? 0 : fruitless + 1;
      if (fruitless === fruitless_max)
        throw new StoreError("unavailable", `${file.name} cannot be downloaded: ${broke}`);
      if (fruitless > 0) await new Promise((go) => { setTimeout(go, wait_first_ms * 2 ** (fruitless - 1)); });
    }
  }

  // Returns why the connection ended; if it brought bytes, the caller goes on behind them.
  async fetchRange({ name, sha256, bytes }, have, write, { url, key, signal }) {
    const headers = { Range: `bytes=${have}-${Math.min(have + range_bytes, bytes) - 1}` };
    if (key) headers.Authorization = `Bearer ${key}`;
    const broken = (error) => {
      if (signal?.aborted) throw error;
      return { broke: error.message };
    };

    const response = await fetch(url + sha256, { headers, signal, cache: "no-store" }).catch(broken);
    if (response.broke) return response.broke;
    if (passing.includes(response.status)) return `the hub answered ${response.status}`;
    if (response.status !== 206) {
      throw new StoreError("unavailable", `the hub answered ${response.status} for ${name}`);
    }
    let failure = null;      // of the disk, unlike an error of the connection
    const take = (piece) => {
      try {
        write(piece);
      } catch (error) { failure = error; }
      return failure === null;
    };
    const ended = await readPieces(response.body, take).catch(broken);
    if (failure) throw failure;
    return ended?.broke ?? "nothing came";
  }

  // ---- the hub's list of files, kept for use without the hub

  // Stores `list` and keeps its files. Removes the files of an earlier list, except experts that this browser serves.
  keepOnly(list) {
    return withLock(lock_name, {}, async () => {
      const uses = new Uses(this.folder);
      await uses.load();
      const kept = new Set([...list.files.map(({ sha256 }) => sha256), ...uses.names()]);
      const earlier = await this.folder.listed();
      await this.folder.writeText(list_name, JSON.stringify(list));
      await (await this.folder.top()).removeEntry(loading_name).catch(unlessGone);
      for (const { sha256 } of earlier) if (!kept.has(sha256)) await this.folder.remove(sha256);
      for (const [name] of await this.folder.files()) {
        if (name.endsWith(".part") && !kept.has(name.slice(0, 64))) await this.folder.remove(name);
      }
    });
  }
  // Returns the stored list of files; null if no list is stored, or if some of its files are missing.
  async keptList() {
    try {
      const list = JSON.parse(await this.folder.readText(list_name));
      return (await this.missing(list.files)).bytes === 0 ? list : null;
    } catch { return null; }
  }

  // ---- synchronous reads, from files that openAll() has opened

  // Opens the files for reading, until closeAll(). Chromium lets several tabs read a file. In other browsers a handle
  // is exclusive, whatever mode is asked for, and a second tab gets a NoModificationAllowedError. Every tab therefore
  // holds a shared lock while its handles are open, and a tab that cannot open a file waits for the exclusive lock: it
  // gets the lock when the other tabs have closed their handles.
  async openAll(files) {
    try {
      await this.openUnder("shared", files);
    } catch (error) {
      this.closeAll();
      if (error.name !== "NoModificationAllowedError") throw error;
      await this.openUnder("exclusive", files);
    }
  }
  // Opens further files beside those that openAll() has opened.
  async openMore(files) {
    for (const file of files) if (!this.handles.has(file.sha256)) await this.openOne(file);
  }
  // Resolves when the files are open; the lock is held until closeAll().
  openUnder(mode, files) {
    return new Promise((resolve, reject) => {
      withLock(reading_lock_name, { mode }, async () => {
        const closed = new Promise((free) => { this.free = free; });
        for (const file of files) await this.openOne(file);
        resolve();
        await closed;
      }).catch(reject);
    });
  }
  async openOne({ name, sha256 }) {
    const file = await this.folder.find(sha256);
    if (!file) throw new StoreError("unavailable", `${name} is missing in this browser: load it again`);
    this.handles.set(sha256, await file.createSyncAccessHandle({ mode: "read-only" }));
  }
  size(sha256) { return this.handles.get(sha256)?.getSize() ?? -1; }
  read(sha256, offset, to) { return this.handles.get(sha256)?.read(to, { at: offset }) ?? -1; }
  closeAll() {
    for (const handle of this.handles.values()) handle.close();
    this.handles.clear();
    this.free();
  }
}
