// Files by their SHA-256 in the browser's private file system: fetched in ranges, gone on with where a download broke,
// verified before they get their name. For Dedicated Workers: only those may read at once (sync access handles).
export const folder_name = "moex-models";     // as in static/js/forget.js

const fetches_max = 4;
const range_bytes = 16 << 20;
// A file is hashed as a whole, in memory.
const file_bytes_max = 2 ** 30;

const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");

// What goes wrong with a code: "no_space" | "unavailable" (of the hub) | "hash_mismatch" | "unsupported".
export class StoreError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export class FileStore {
  static async open() {
    if (!navigator.storage?.getDirectory) {
      throw new StoreError("unsupported", "this browser keeps no files for pages");
    }
    const store = new FileStore();
    const root = await navigator.storage.getDirectory();
    store.folder = await root.getDirectoryHandle(folder_name, { create: true });
    store.handles = new Map();     // of open files, by hash
    return store;
  }

  // Bytes that are here, by name; what is not whole yet ends in ".part".
  async sizes() {
    const sizes = new Map();
    for await (const [name, handle] of this.folder.entries()) sizes.set(name, (await handle.getFile()).size);
    return sizes;
  }

  // Of `files` ({name, sha256, bytes}) those that have to be fetched, and how much of them.
  async missing(files) {
    const sizes = await this.sizes();
    const wanted = files.filter(({ sha256, bytes }) => sizes.get(sha256) !== bytes);
    const left = ({ sha256, bytes }) => bytes - Math.min(bytes, sizes.get(`${sha256}.part`) ?? 0);
    return { files: wanted, bytes: wanted.reduce((sum, file) => sum + left(file), 0) };
  }

  // Fetches what is missing from beneath `url`. `progress(bytes)` hears what came, negative where it was of no use.
  // Tabs take turns: what one fetched the next one finds.
  fetchAll(files, how) {
    return navigator.locks.request(folder_name, { signal: how.signal }, async () => {
      const missing = await this.missing(files);
      await this.checkRoom(missing);
      const waiting = missing.files.slice();
      const fetchNext = async () => {
        for (let file = waiting.shift(); file; file = waiting.shift()) await this.fetchOne(file, how);
      };
      await Promise.all(Array.from({ length: fetches_max }, fetchNext));
    });
  }

  async checkRoom({ files, bytes }) {
    const large = files.find((file) => file.bytes > file_bytes_max);
    if (large) {
      throw new StoreError("unsupported", `${large.name} has ${large.bytes} bytes; a tab takes files of 1 GiB at most`);
    }
    const { quota, usage } = await navigator.storage.estimate();
    if (bytes > quota - usage) throw new StoreError("no_space", `${bytes} bytes are wanted, ${quota - usage} are free`);
  }

  async fetchOne(file, how) {
    const part = await this.folder.getFileHandle(`${file.sha256}.part`, { create: true });
    const handle = await part.createSyncAccessHandle();
    try {
      let have = handle.getSize();
      if (have > file.bytes) have = 0;
      while (have < file.bytes) have = await this.fetchRange(file, have, handle, how);
      handle.truncate(file.bytes);
      handle.flush();
    } finally {
      handle.close();
    }

    const bytes = await (await part.getFile()).arrayBuffer();
    if (toHex(await crypto.subtle.digest("SHA-256", bytes)) !== file.sha256) {
      await this.folder.removeEntry(part.name);
      how.progress(-file.bytes);
      throw new StoreError("hash_mismatch", `${file.name} from the hub does not match its hash`);
    }
    await part.move(file.sha256);
  }

  // Gives how much of the file there is then.
  async fetchRange({ name, sha256, bytes }, have, handle, { url, key, signal, progress }) {
    const headers = { Range: `bytes=${have}-${Math.min(have + range_bytes, bytes) - 1}` };
    if (key) headers.Authorization = `Bearer ${key}`;
    const response = await fetch(url + sha256, { headers, signal, cache: "no-store" });
    if (response.status !== 206) {
      throw new StoreError("unavailable", `the hub answered ${response.status} for ${name}`);
    }
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return have;
      const written = handle.write(value, { at: have });      // at the end of the quota not all of it
      if (written !== value.length) throw new StoreError("no_space", `the browser keeps no more bytes of ${name}`);
      have += value.length;
      progress(value.length);
    }
  }

  // What no model needs that is here now.
  async keepOnly(files) {
    const kept = new Set(files.map(({ sha256 }) => sha256));
    for (const name of (await this.sizes()).keys()) {
      if (!kept.has(name)) await this.folder.removeEntry(name).catch(() => {});      // another tab reads it
    }
  }

  // ---- reading at once, of files that were opened before

  async openAll(files) {
    for (const { sha256 } of files) {
      const handle = await this.folder.getFileHandle(sha256);
      this.handles.set(sha256, await handle.createSyncAccessHandle({ mode: "read-only" }));
    }
  }
  size(sha256) { return this.handles.get(sha256)?.getSize() ?? -1; }
  read(sha256, offset, to) { return this.handles.get(sha256)?.read(to, { at: offset }) ?? -1; }
  closeAll() {
    for (const handle of this.handles.values()) handle.close();
    this.handles.clear();
  }
}
