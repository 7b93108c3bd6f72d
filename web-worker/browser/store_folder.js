// What a browser keeps for this site by SHA-256, experts and whole models alike: files of its private file system, in
// 256 folders by the first two digits. (Chromium lists and opens 6,144 files of one folder as fast, see
// bench/results/tab_store.*; other browsers need not.) A file is found by its name; all are listed only where room is
// wanted, or for a whole model. Beside them lies who was used when (uses.json), for the order in which they leave.
// Writing is for Dedicated Workers: only those have sync access handles. Tabs share the folder: a handle for writing is
// exclusive, and a file gets its name when it is whole.
export const folder_name = "moex-models";     // as in static/js/forget.js
export const list_name = "listed.json";      // a whole model's files, as the hub listed them last
export const loading_name = "loading.json";   // and of one that is loaded
const uses_name = "uses.json";
const uses_lock = "moex-uses";
const is_name = /^[0-9a-f]{64}(\.part|\.new)?$/;

// What goes wrong with a code: "no_space" | "unavailable" (of the hub) | "hash_mismatch" | "unsupported".
export class StoreError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

// null where another tab has renamed or dropped it meanwhile, or never wrote it.
export const unlessGone = (error) => {
  if (error.name !== "NotFoundError") throw error;
  return null;
};

export class StoreFolder {
  static async open() {
    if (!navigator.storage?.getDirectory) {
      throw new StoreError("unsupported", "this browser keeps no files for pages");
    }
    const folder = new StoreFolder();
    await folder.top(true);
    return folder;
  }
  constructor() { this.shards = new Map(); }      // handles, by name

  async top(create = false) {
    const root = await navigator.storage.getDirectory();
    return root.getDirectoryHandle(folder_name, { create });
  }
  async shard(name, create = false) {
    const key = name.slice(0, 2);
    if (!this.shards.has(key)) {
      const shard = await (await this.top(create)).getDirectoryHandle(key, { create });
      this.shards.set(key, shard);
    }
    return this.shards.get(key);
  }

  // The handle of a file, null where there is none.
  async find(name) {
    try {
      return await (await this.shard(name)).getFileHandle(name);
    } catch (error) { return unlessGone(error); }
  }
  // The same, made where there is none: also in a folder that somebody deleted since it was opened.
  async make(name) {
    try {
      return await (await this.shard(name, true)).getFileHandle(name, { create: true });
    } catch (error) {
      unlessGone(error);
      this.shards.clear();
      return (await this.shard(name, true)).getFileHandle(name, { create: true });
    }
  }
  // False: somebody reads or writes it just now, or it is not there.
  async remove(name) {
    try {
      await (await this.shard(name)).removeEntry(name);
      return true;
    } catch { return false; }
  }

  // [name, handle] of all that lies here.
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
  // Bytes that are here, by name; what is not whole yet ends in ".part" (of a whole model) or ".new" (of an expert).
  async sizes() {
    const sizes = new Map();
    await Promise.all((await this.files()).map(async ([name, handle]) => {
      const file = await handle.getFile().catch(unlessGone);
      if (file) sizes.set(name, file.size);
    }));
    return sizes;
  }

  // Bytes under the name of their hash; whoever asks has verified them. Where another tab writes the same or reads what
  // lies there, that stays. The end of the quota is a QuotaExceededError.
  async write(hex, bytes) {
    const file = await this.make(`${hex}.new`);
    const handle = await file.createSyncAccessHandle();
    let is_whole = false;
    try {
      handle.truncate(0);
      is_whole = handle.write(bytes, { at: 0 }) === bytes.length;      // at the end of the quota not all of it
      handle.flush();
    } finally {
      handle.close();
      if (!is_whole) await this.remove(`${hex}.new`);
    }
    if (!is_whole) throw new DOMException("the browser keeps no more bytes", "QuotaExceededError");
    await file.move(hex);
  }

  // A file of the folder itself, which is none by hash: a list.
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
    if (!is_whole) throw new DOMException(`the browser keeps no more bytes of ${name}`, "QuotaExceededError");
    await file.move(name);
  }

  // Of the whole model that the browser keeps for "this device", or loads: {name, sha256, bytes}.
  async listed() {
    const read = async (name) => {
      try { return JSON.parse(await this.readText(name)).files; } catch { return []; }
    };
    const files = [...await read(list_name), ...await read(loading_name)];
    return [...new Map(files.map((file) => [file.sha256, file])).values()];
  }

  // Files from before there were 256 folders. One that another tab reads stays where it is, for the next time.
  async adopt() {
    const old = [];
    for await (const [name, handle] of (await this.top(true)).entries()) if (is_name.test(name)) old.push(handle);
    for (const handle of old) await handle.move(await this.shard(handle.name, true), handle.name).catch(() => {});
  }
}

// ---- who leaves

// Blobs from who leaves first to who leaves last. `blobs`: name -> {uses, at, model}, at: when it was used last; other
// models' go before those of `served`, the longest unused first, and of its own who was used least.
export function leavingOrder(blobs, served) {
  const isOwn = ({ model }) => (model !== "" && model === served ? 1 : 0);
  return [...blobs].sort(([, a], [, b]) => {
    const own = isOwn(a);
    if (own !== isOwn(b)) return own - isOwn(b);
    return own ? a.uses - b.uses || a.at - b.at : a.at - b.at || a.uses - b.uses;
  }).map(([name]) => name);
}

const empty = { served: "", blobs: {} };

// Who was used how often and when, over visits and tabs. What this tab adds is written later, by save().
export class Uses {
  constructor(folder) {
    this.folder = folder;
    this.served = "";            // the model that this tab computes for, "" until it is known
    this.kept = empty;           // as it was written last: {served, blobs: {name: [uses, at, bytes, model]}}
    this.added = new Map();      // name -> {uses, at, bytes}, of this tab, not written yet
    this.dropped = new Set();
  }

  async load() {
    const text = await this.folder.readText(uses_name).catch(() => "");
    try { this.kept = JSON.parse(text); } catch { this.kept = empty; }
    if (typeof this.kept?.blobs !== "object") this.kept = empty;
  }

  // `bytes` 0: it is not known to lie here.
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

  // Adds to what other tabs wrote meanwhile. Nothing is made anew where all was forgotten.
  save() {
    return navigator.locks.request(uses_lock, async () => {
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
        if (error.name === "QuotaExceededError") return;      // written once there is room again
        throw error;
      }
      this.kept = kept;
      this.added.clear();
      this.dropped.clear();
    });
  }
}
