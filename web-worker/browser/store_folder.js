// The folder in which a browser keeps files for this site under their SHA-256, experts and whole models alike. They are
// files of the browser's private file system, in 256 sub-folders by the first two digits. (Chromium lists and opens
// 6,144 files of one folder equally fast, see bench/results/tab_store.*; other browsers may not.)
//
// A file is found by its name. All files are listed only when room is needed, or when a whole model is loaded. The
// folder also has a list of when each file was used (uses.json), which decides the eviction order. Only Dedicated
// Workers can write, because only those have sync access handles. Tabs share the folder: a handle for writing is
// exclusive, and a file gets its final name when it is complete.
import { StorageError, bounded, fileRoot, withLock } from "./storage.js";

export const folder_name = "moex-models";     // static/js/forget.js deletes the folder of this name
export const list_name = "listed.json";      // list of the files of the stored whole model, as the hub sent it
export const loading_name = "loading.json";   // list of the files of a model that is being downloaded
const uses_name = "uses.json";
const uses_lock = "moex-uses";
const is_name = /^[0-9a-f]{64}(\.part|\.new)?$/;

// An error with a code: "no_space" | "unavailable" (the hub) | "hash_mismatch" | "unsupported".
export class StoreError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

// Handles an error of a file access: returns null if the file does not exist, for example because another tab has
// renamed or removed it; rethrows any other error.
export const unlessGone = (error) => {
  if (error.name !== "NotFoundError") throw error;
  return null;
};

// Finds, writes and removes files by hash in the site's private folder.
export class StoreFolder {
  static async open() {
    const folder = new StoreFolder();
    await folder.top(true).catch((error) => {
      throw error instanceof StorageError ? new StoreError("unsupported", error.message) : error;
    });
    return folder;
  }
  constructor() { this.shards = new Map(); }      // folder handles, by name

  async top(create = false) {
    const root = await fileRoot();
    return bounded("files", () => root.getDirectoryHandle(folder_name, { create }));
  }
  async shard(name, create = false) {
    const key = name.slice(0, 2);
    if (!this.shards.has(key)) {
      const shard = await (await this.top(create)).getDirectoryHandle(key, { create });
      this.shards.set(key, shard);
    }
    return this.shards.get(key);
  }

  // Returns the handle of the file `name`, or null if the file does not exist.
  async find(name) {
    try {
      return await (await this.shard(name)).getFileHandle(name);
    } catch (error) { return unlessGone(error); }
  }
  // Returns the handle of the file `name`. Creates the file if it does not exist, even if the folder was deleted after
  // this object had opened it.
  async make(name) {
    try {
      return await (await this.shard(name, true)).getFileHandle(name, { create: true });
    } catch (error) {
      unlessGone(error);
      this.shards.clear();
      return (await this.shard(name, true)).getFileHandle(name, { create: true });
    }
  }
  // Removes a file. Returns false if the file does not exist, or if another tab is reading or writing it.
  async remove(name) {
    try {
      await (await this.shard(name)).removeEntry(name);
      return true;
    } catch { return false; }
  }

  // Returns [name, handle] for every file in the sub-folders.
  async files() {
    const top = await this.top().catch(unlessGone);
    const found = [];
    const list = async (shard) => {
      for await (const [name, handle] of shard.entries()) if (handle.kind === "file") found.push([name, handle]);
    };
    const lists = [];
    if (top) {
      for await (const [name, handle] of top.entries()) {
        if (handle.kind === "directory" && /^[0-9a-f]{2}$/.test(name)) lists.push(list(handle).catch(unlessGone));
      }
    }
    await Promise.all(lists);
    return found;
  }
  // Returns the size of every file, as a map name -> bytes on disk. Names of incomplete files end in ".part" (of a
  // whole model) or ".new" (of an expert).
  async sizes() {
    const sizes = new Map();
    await Promise.all((await this.files()).map(async ([name, handle]) => {
      const file = await handle.getFile().catch(unlessGone);
      if (file) sizes.set(name, file.size);
    }));
    return sizes;
  }

  // Writes `bytes` under the name of their hash; the caller has verified them. If another tab writes or reads the same
  // file, the existing file stays. At the end of the quota this throws a QuotaExceededError. The bytes are flushed
  // before the file gets its name, because the model of "this device" takes a file of the right size for the verified
  // one.
  async write(hex, bytes) {
    const file = await this.make(`${hex}.new`);
    const handle = await file.createSyncAccessHandle();
    let is_whole = false;
    try {
      handle.truncate(0);
      is_whole = handle.write(bytes, { at: 0 }) === bytes.length;      // false if the quota ends within `bytes`
      handle.flush();
    } finally {
      handle.close();
      if (!is_whole) await this.remove(`${hex}.new`);
    }
    if (!is_whole) throw new DOMException("the browser stores no more bytes", "QuotaExceededError");
    await file.move(hex);
  }

  // Reads a text file of the top folder: a list, which is stored by name and not by hash.
  async readText(name) {
    const file = await (await this.top()).getFileHandle(name);
    return (await file.getFile()).text();
  }
  async writeText(name, text) {
    const file = await (await this.top()).getFileHandle(`${name}.new`, { create: true });
    const bytes = new TextEncoder().encode(text);
    const handle = await file.createSyncAccessHandle();
    let is_whole = false;
    try {
      handle.truncate(0);
      is_whole = handle.write(bytes, { at: 0 }) === bytes.length;
    } finally { handle.close(); }
    if (!is_whole) throw new DOMException(`the browser stores no more bytes of ${name}`, "QuotaExceededError");
    await file.move(name);
  }

  // Returns the files {name, sha256, bytes} of the whole model that the browser keeps or downloads for "this device".
  async listed() {
    const read = async (name) => {
      try { return JSON.parse(await this.readText(name)).files; } catch { return []; }
    };
    const files = [...await read(list_name), ...await read(loading_name)];
    return [...new Map(files.map((file) => [file.sha256, file])).values()];
  }

  // Moves files that an earlier version stored without the 256 sub-folders. A file that another tab is reading stays
  // until the next call.
  async adopt() {
    const old = [];
    for await (const [name, handle] of (await this.top(true)).entries()) if (is_name.test(name)) old.push(handle);
    for (const handle of old) await handle.move(await this.shard(handle.name, true), handle.name).catch(() => {});
  }
}

// ---- eviction order

// Returns the names of `blobs` in eviction order. `blobs`: name -> {uses, at, model}, at: time of the last use. Blobs
// of other models come first, the least recently used first; then the blobs of the model `served`, the least frequently
// used first.
export function leavingOrder(blobs, served) {
  const isOwn = ({ model }) => (model !== "" && model === served ? 1 : 0);
  return [...blobs].sort(([, a], [, b]) => {
    const own = isOwn(a);
    if (own !== isOwn(b)) return own - isOwn(b);
    return own ? a.uses - b.uses || a.at - b.at : a.at - b.at || a.uses - b.uses;
  }).map(([name]) => name);
}

const empty = { served: "", blobs: {} };

// Counts how often and when each blob was used, over all visits and tabs. save() writes the counts that this tab added.
export class Uses {
  constructor(folder) {
    this.folder = folder;
    this.served = "";            // the model that this tab computes for; "" until known
    this.kept = empty;           // content of uses.json: {served, blobs: {name: [uses, at, bytes, model]}}
    this.added = new Map();      // uses by this tab that are not yet written: name -> {uses, at, bytes}
    this.dropped = new Set();
  }

  async load() {
    const text = await this.folder.readText(uses_name).catch(() => "");
    try { this.kept = JSON.parse(text); } catch { this.kept = empty; }
    if (typeof this.kept?.blobs !== "object") this.kept = empty;
  }

  // Adds uses of a blob. `bytes` 0: it is unknown whether the folder has a file for the blob.
  add(name, bytes, uses, at = Date.now()) {
    const before = this.added.get(name);
    this.added.set(name, { uses: (before?.uses ?? 0) + uses, at, bytes: bytes || (before?.bytes ?? 0) });
    this.dropped.delete(name);
  }
  drop(name) {
    this.added.delete(name);
    this.dropped.add(name);
  }

  get(name) {
    const [uses = 0, at = 0, bytes = 0, model = ""] = this.dropped.has(name) ? [] : this.kept.blobs[name] ?? [];
    const more = this.added.get(name);
    return more ? { uses: uses + more.uses, at: more.at, bytes: more.bytes || bytes, model: this.served }
      : { uses, at, bytes, model };
  }
  names() {
    const names = new Set([...Object.keys(this.kept.blobs), ...this.added.keys()]);
    for (const name of this.dropped) names.delete(name);
    return names;
  }

  // Writes this tab's uses, merged with the uses that other tabs have written in the meantime. The folder is not
  // created again if the user deleted it.
  save() {
    return withLock(uses_lock, {}, async () => {
      await this.load();
      const blobs = { ...this.kept.blobs };
      for (const name of this.added.keys()) {
        const { uses, at, bytes, model } = this.get(name);
        blobs[name] = [uses, at, bytes, model];
      }
      for (const name of this.dropped) delete blobs[name];
      const kept = { served: this.served || this.kept.served, blobs };
      try {
        await this.folder.writeText(uses_name, JSON.stringify(kept)).catch(unlessGone);
      } catch (error) {
        // A later save() writes the uses when the disk has room again.
        if (error.name === "QuotaExceededError") return;
        throw error;
      }
      this.kept = kept;
      this.added.clear();
      this.dropped.clear();
    });
  }
}
