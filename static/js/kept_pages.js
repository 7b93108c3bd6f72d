// Pages of keys and values of the answers of "this device", kept in the browser over reloads: files of the folder
// "moex-pages", and a record of each in the database "moex-pages". Nothing is kept before the user has agreed
// (chat/remembering.js).
//
// A file is encrypted (sealed.js); its name and the model are authenticated with it. Names are keyed hashes (HMAC) of
// the tokens before the page and of all tokens to its end, so they do not show whether a guessed text was read:
//   HMAC(tokens before).HMAC(tokens to the end)
// A record has the size, the time of the last use and the conversations; no text. A text's pages form a chain: the end
// of one page is the beginning of the next.
//
// When the database is deleted, in whatever tab, each open KeptPages closes and writes nothing any more.
import { keys_id, newCipherKey, seal, takeKeys, unseal } from "./sealed.js";
import { bounded, fileRoot, inTable, openDatabase, roomForFiles } from "./storage.js";

export const pages_name = "moex-pages";      // of the folder and of the database; js/forget.js deletes both
const table = "records";
// Pages are deleted when they were not used for so long, and the least recently used first when they exceed the budget.
export const keep_days = 7;
const bytes_max_most = 2 ** 30, quota_share = 0.1;
const evicted_max = 8;      // files that are deleted for one new page: the browser reports freed bytes with a delay

const encoder = new TextEncoder();
const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const isFull = (error) => error.name === "QuotaExceededError";

const newKeys = async () => ({
  cipher: await newCipherKey(),
  names: await crypto.subtle.generateKey({ name: "HMAC", hash: "SHA-256", length: 256 }, false, ["sign"]),
});

// Stores, finds and deletes pages.
export class KeptPages {
  // `model`: the name of the pages' source; pages of another source are not found. Rejects with a StorageError, or with
  // the browser's error, if the browser keeps no files or no keys.
  static async open(model) {
    const kept = new KeptPages(model);
    kept.database = await openDatabase(pages_name, (made) => made.createObjectStore(table, { keyPath: "id" }));
    kept.database.addEventListener("versionchange", () => { kept.is_closed = true; });
    kept.keys = await takeKeys(kept.database, table, newKeys);
    const root = await fileRoot();
    kept.folder = await bounded("files", () => root.getDirectoryHandle(pages_name, { create: true }));
    const { quota = Infinity } = await roomForFiles() ?? {};
    kept.bytes_max = Math.floor(Math.min(bytes_max_most, quota * quota_share));
    await kept.dropOld();
    return kept;
  }
  constructor(model) {
    this.model = model;
    this.is_closed = false;
  }
  close() {
    this.is_closed = true;
    this.database?.close();
  }

  // Returns the records of all files: {id: the file's name, bytes, used_at, position, conversations}.
  async records() {
    const all = await inTable(this.database, table, "readonly", (store) => store.getAll());
    return all.filter(({ id }) => id !== keys_id);
  }
  async bytes() { return (await this.records()).reduce((sum, { bytes }) => sum + bytes, 0); }

  // Returns the keyed hash of `hash`, the SHA-256 of tokens.
  async nameOf(hash) {
    const text = `${this.model} ${toHex(hash)}`;
    return toHex(await crypto.subtle.sign("HMAC", this.keys.names, encoder.encode(text))).slice(0, 32);
  }
  sealedAs(name) { return `${name} ${this.model}`; }

  // Returns the names of the files of the pages behind the tokens `before`: the page to `end` first, then at most three
  // others, the last used first.
  async names(before, end) {
    const [first, last] = await Promise.all([this.nameOf(before), end ? this.nameOf(end) : ""]);
    const wanted = `${first}.${last}`;
    const found = (await this.records()).filter(({ id }) => id.startsWith(`${first}.`));
    found.sort((a, b) => Number(b.id === wanted) - Number(a.id === wanted) || b.used_at - a.used_at);
    return found.map(({ id }) => id).slice(0, 4);
  }

  // Returns the bytes of a page; null if the file is gone, cut short or altered.
  async read(name) {
    try {
      const bytes = await bounded("page", async () => {
        const file = await this.folder.getFileHandle(name);
        return (await file.getFile()).arrayBuffer();
      });
      return await unseal(this.keys.cipher, this.sealedAs(name), bytes);
    } catch { return null; }
  }

  // Notes a use of the files `names` by `conversation`. `at`: the time.
  async use(names, conversation, at = Date.now()) {
    if (this.is_closed || names.length === 0) return;
    await inTable(this.database, table, "readwrite", (store) => {
      for (const name of names) {
        const request = store.get(name);
        request.onsuccess = () => {
          const record = request.result;
          if (!record) return;
          const conversations = [...new Set([...record.conversations, conversation])];
          store.put({ ...record, used_at: at, conversations });
        };
      }
    });
  }

  // Writes a page of `position`, its place in the text. Parts of the same page that only this conversation had are
  // replaced. Resolves to "kept", or to "full" if there is no room without the files in `chain`, which the same text
  // needs, or to "closed".
  async write({ before, end, bytes, position, conversation, chain }) {
    const name = `${await this.nameOf(before)}.${await this.nameOf(end)}`;
    const sealed = await seal(this.keys.cipher, this.sealedAs(name), bytes);
    const size = sealed.length;
    const records = await this.records();
    const replaced = records.filter(({ id, conversations }) => (
      id !== name && id.startsWith(`${name.split(".")[0]}.`) && conversations.every((one) => one === conversation)));
    await this.remove(replaced.filter(({ bytes: had }) => had < size).map(({ id }) => id));

    let total = records.reduce((sum, one) => sum + one.bytes, 0);
    const leaving = records.filter(({ id }) => id !== name && !chain.has(id))
      .sort((a, b) => a.used_at - b.used_at || b.position - a.position);
    const makeRoom = async () => {
      const [gone] = leaving.splice(0, 1);
      if (!gone) return false;
      total -= gone.bytes;
      await this.remove([gone.id]);
      return true;
    };
    while (total + size > this.bytes_max) if (!await makeRoom()) return "full";
    for (let evicted = 0; !this.is_closed; evicted += 1) {
      try {
        await this.writeFile(name, sealed);
        break;
      } catch (error) {
        if (error.name === "NoModificationAllowedError") return "kept";      // another tab writes the same page
        if (!isFull(error)) throw error;
        if (evicted === evicted_max || !await makeRoom()) return "full";
      }
    }
    if (this.is_closed) return "closed";
    const record = { id: name, bytes: size, used_at: Date.now(), position, conversations: [conversation] };
    await inTable(this.database, table, "readwrite", (store) => { store.put(record); });
    chain.add(name);
    return "kept";
  }

  // A file that was cut short is deleted; if that is not possible, its tag does not fit.
  async writeFile(name, sealed) {
    const file = await this.folder.getFileHandle(name, { create: true });
    // A SharedWorker has no sync access handles. Its stream writes another file, which replaces this one at the end.
    if (!file.createSyncAccessHandle) {
      const written = file.createWritable().then((stream) => new Blob([sealed]).stream().pipeTo(stream));
      await written.catch(async (error) => {
        await this.folder.removeEntry(name).catch(() => {});
        throw error;
      });
      return;
    }
    const handle = await file.createSyncAccessHandle();
    let written = 0;
    try {
      handle.truncate(0);
      written = handle.write(sealed, { at: 0 });
      handle.flush();
    } finally {
      handle.close();
      if (written !== sealed.length) await this.folder.removeEntry(name).catch(() => {});
    }
    if (written !== sealed.length) throw new DOMException(name, "QuotaExceededError");
  }

  async remove(names) {
    if (names.length === 0) return;
    await inTable(this.database, table, "readwrite", (store) => { for (const name of names) store.delete(name); });
    for (const name of names) await this.folder.removeEntry(name).catch(() => {});
  }

  // Returns what the registry of sessions (service_worker.js) has of a conversation.
  async sessionOf(conversation) {
    const own = (await this.records()).filter(({ conversations }) => conversations.includes(conversation));
    const used_at = own.reduce((last, one) => Math.max(last, one.used_at), 0);
    return { conversation, model: this.model, pages: own.length, expires_at: used_at + keep_days * 86400000 };
  }

  // Deletes pages that were not used for keep_days, and files without a record.
  async dropOld(now = Date.now()) {
    const records = await this.records();
    await this.remove(records.filter(({ used_at }) => used_at < now - keep_days * 86400000).map(({ id }) => id));
    const known = new Set(records.map(({ id }) => id));
    const strays = [];
    for await (const name of this.folder.keys()) if (!known.has(name)) strays.push(name);
    for (const name of strays) await this.folder.removeEntry(name).catch(() => {});
  }

  // Deletes the pages that only `conversation` used, and its id in the records of the others.
  async forget(conversation) {
    const records = await this.records();
    const isOwn = ({ conversations }) => conversations.every((one) => one === conversation);
    await this.remove(records.filter(isOwn).map(({ id }) => id));
    const shared = records.filter((one) => !isOwn(one) && one.conversations.includes(conversation));
    await inTable(this.database, table, "readwrite", (store) => {
      for (const one of shared) {
        store.put({ ...one, conversations: one.conversations.filter((id) => id !== conversation) });
      }
    });
  }
}
