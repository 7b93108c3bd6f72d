// Files by their SHA-256 in the browser's private file system: fetched in ranges, gone on with where a download broke,
// verified before they get their name. For Dedicated Workers: only those may read at once (sync access handles).
export const folder_name = "moex-models";     // as in static/js/forget.js

const list_name = "listed.json";      // beside the files: what the hub listed last

const fetches_max = 4;
const range_bytes = 16 << 20;
// A line that breaks is replaced, first at once; without a byte so many times in a row, ever later, the user decides.
const fruitless_max = 6;
const wait_first_ms = 250;
// Of a hub that starts, stops or is full.
const passing = [429, 502, 503, 504];
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
    const gone = (error) => {                  // another tab has given it its name, or dropped it, meanwhile
      if (error.name !== "NotFoundError") throw error;
    };
    for await (const [name, handle] of this.folder.entries()) {
      const file = await handle.getFile().catch(gone);
      if (file) sizes.set(name, file.size);
    }
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
      await this.fetchRest(file, handle, how);
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

  // All behind what is there. What had come when a line broke is kept, and asked for no more.
  async fetchRest(file, handle, how) {
    let have = handle.getSize();
    if (have > file.bytes) have = 0;
    const write = (bytes) => {
      const written = handle.write(bytes, { at: have });      // at the end of the quota not all of it
      if (written !== bytes.length) throw new StoreError("no_space", `the browser keeps no more bytes of ${file.name}`);
      have += bytes.length;
      how.progress(bytes.length);
    };

    for (let fruitless = 0; have < file.bytes;) {
      const before = have;
      const broke = await this.fetchRange(file, have, write, how);
      fruitless = have > before ? 0 : fruitless + 1;
      if (fruitless === fruitless_max) throw new StoreError("unavailable", `${file.name} does not come: ${broke}`);
      if (fruitless > 0) await new Promise((go) => { setTimeout(go, wait_first_ms * 2 ** (fruitless - 1)); });
    }
  }

  // Gives "", or why the line broke before all of the range had come.
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
    for (const reader = response.body.getReader();;) {
      const { done, value, broke } = await reader.read().catch(broken);
      if (done || broke) return broke ?? "nothing came";
      write(value);
    }
  }

  // ---- the hub's list, for the time without the hub

  // Keeps `list` and its files, and nothing besides.
  keepOnly(list) {
    return navigator.locks.request(folder_name, async () => {
      const file = await this.folder.getFileHandle(list_name, { create: true });
      const handle = await file.createSyncAccessHandle();
      handle.truncate(0);
      handle.write(new TextEncoder().encode(JSON.stringify(list)), { at: 0 });
      handle.close();

      const kept = new Set([list_name, ...list.files.map(({ sha256 }) => sha256)]);
      for (const name of (await this.sizes()).keys()) {
        if (!kept.has(name)) await this.folder.removeEntry(name).catch(() => {});      // another tab reads it
      }
    });
  }
  // null where none was kept, or not all of its files are here.
  async keptList() {
    try {
      const handle = await this.folder.getFileHandle(list_name);
      const list = JSON.parse(await (await handle.getFile()).text());
      return (await this.missing(list.files)).bytes === 0 ? list : null;
    } catch { return null; }
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
