// Pages of keys and values of the answers of "this device", kept in the browser over reloads: files of the folder
// "moex-pages", and a record of each in the database "moex-pages". Nothing is kept before the user has agreed
// (chat/remembering.js).
//
// A file is encrypted (sealed.js); its name and the model are authenticated with it. Names are keyed hashes (HMAC) of
// the tokens before the page and of all tokens to its end, so they do not show whether a guessed text was read:
//   HMAC(tokens before).HMAC(tokens to the end)
// A record has the size, the number of tokens, the time of the last use and the conversations; no text. A text's pages
// form a chain: the end of one page is the beginning of the next.
//
// Some models have a recurrent state, whose size does not depend on the length of the text. It is a file of its own
// with the name of the page at whose end it is, and `.state`. It is deleted with its page, and before it where room for
// states is short: the least recently used text's states first, and within the text in use those that are closest to
// others (leavingState()). The states that the text in use asks for leave only for a later one of the same text.
//
// When the database is deleted, in whatever tab, each open KeptPages closes and writes nothing any more.
import { keys_id, newCipherKey, seal, takeKeys, unseal } from "./sealed.js";
import { bounded, fileRoot, inTable, openDatabase, roomForFiles } from "./storage.js";

export const pages_name = "moex-pages";      // of the folder and of the database; js/forget.js deletes both
const table = "records";
// Pages are deleted when they were not used for so long, and the least recently used first when they exceed the budget.
export const keep_days = 7;
const bytes_max_most = 2 ** 30, quota_share = 0.1;
const state_share = 0.5;              // of these bytes, those that states may take
const text_state_bytes_max = 2 ** 28, text_states_min = 4, text_states_most = 8;      // of the states of one text
export const state_end = ".state";
const evicted_max = 8;      // files that are deleted for one new page: the browser reports freed bytes with a delay

const encoder = new TextEncoder();
const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const isFull = (error) => error.name === "QuotaExceededError";
const isState = ({ id }) => id.endsWith(state_end);
const bytesOf = (records) => records.reduce((sum, { bytes }) => sum + bytes, 0);

// Returns how many states of `bytes` each one text keeps.
export const statesOfText = (bytes) => (
  Math.min(text_states_most, Math.max(text_states_min, Math.floor(text_state_bytes_max / bytes))));

// Returns that state of `own`, the records of a text's states, which leaves first for one at the end of page
// `position`: where it is between two close ones, beside their distance from the last one. One of `wanted`, the ids
// that the text asks for, leaves only if it is before `position` and no other is left. Returns undefined if none may.
//   states of pages 0 1 2 3 4 5, and 6 is new: page 0 leaves first, then page 2
export function leavingState(own, wanted, position) {
  const all = [...own, { position }].sort((a, b) => a.position - b.position);
  const end = (i) => (i < 0 ? 0 : all[i].position + 1);
  const costs = all.map((one, i) => (
    { one, cost: i + 1 < all.length ? (end(i + 1) - end(i - 1)) / (end(all.length - 1) - end(i - 1)) : 2 }));
  const free = costs.filter(({ one }) => one.id && !wanted.has(one.id));
  if (free.length > 0) return free.reduce((least, next) => (next.cost < least.cost ? next : least)).one;
  return all.find((one) => one.id && one.position < position);
}

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
    kept.state_bytes_max = Math.floor(kept.bytes_max * state_share);
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

  // Returns the records of all files: {id: the file's name, bytes, tokens, used_at, position, conversations}.
  async records() {
    const all = await inTable(this.database, table, "readonly", (store) => store.getAll());
    return all.filter(({ id }) => id !== keys_id);
  }
  async bytes() { return bytesOf(await this.records()); }

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
    const found = (await this.records()).filter((one) => one.id.startsWith(`${first}.`) && !isState(one));
    found.sort((a, b) => Number(b.id === wanted) - Number(a.id === wanted) || b.used_at - a.used_at);
    return found.map(({ id }) => id).slice(0, 4);
  }

  // Returns the pages of a text from page `first` on, as far as they are here, as {before, name, state}; `state` is the
  // name of a file, or "". The last page may be one that is not full. `hashOf(num)` resolves to the SHA-256 of the
  // text's first `num` tokens, of `num_tokens`.
  async chain(first, num_tokens, page_tokens, hashOf) {
    const records = new Map((await this.records()).map((one) => [one.id, one]));
    const pages = [];
    for (let page = first; page * page_tokens < num_tokens; page += 1) {
      const before = await hashOf(page * page_tokens);
      const begin = `${await this.nameOf(before)}.`;
      const lengths = [...records.values()]
        .filter((one) => one.id.startsWith(begin) && !isState(one)).map(({ tokens = page_tokens }) => tokens)
        .filter((tokens) => page * page_tokens + tokens <= num_tokens);
      let found = null;
      for (const tokens of [...new Set(lengths)].sort((a, b) => b - a)) {
        const name = begin + await this.nameOf(await hashOf(page * page_tokens + tokens));
        const state = records.has(name + state_end) ? name + state_end : "";
        if (records.has(name) && (tokens === page_tokens || state)) found ??= { before, name, state, tokens };
      }
      if (found) pages.push(found);
      if (found?.tokens !== page_tokens) break;
    }
    return pages;
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

  // Notes a use of the files `names`, and of their states, by `conversation`. `at`: the time.
  async use(names, conversation, at = Date.now()) {
    if (this.is_closed || names.length === 0) return;
    await inTable(this.database, table, "readwrite", (store) => {
      for (const name of names.flatMap((one) => [one, one + state_end])) {
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
  async write({ before, end, bytes, position, tokens, conversation, chain }) {
    const name = `${await this.nameOf(before)}.${await this.nameOf(end)}`;
    const sealed = await seal(this.keys.cipher, this.sealedAs(name), bytes);
    const replaced = (await this.records()).filter((one) => (
      one.id !== name && one.id.startsWith(`${name.split(".")[0]}.`) && !isState(one) && one.bytes < sealed.length
      && one.conversations.every((other) => other === conversation)));
    await this.remove(replaced.map(({ id }) => id));
    return this.writeSealed({ name, sealed, position, tokens, conversation, chain });
  }

  // Writes the state at the end of the page `name`, as write(). `own`: the names of all pages of the text; `wanted`:
  // the names of the states that the text asks for.
  async writeState({ name, bytes, position, tokens, conversation, chain, own, wanted }) {
    const id = name + state_end;
    const sealed = await seal(this.keys.cipher, this.sealedAs(id), bytes);
    const states = (await this.records()).filter((one) => isState(one) && one.id !== id);
    const isOwn = (one) => own.has(one.id.slice(0, -state_end.length));
    const mine = states.filter(isOwn);
    const others = states.filter((one) => !isOwn(one))
      .sort((a, b) => a.used_at - b.used_at || a.position - b.position);
    const most = this.state_bytes_max;
    if (sealed.length > most) return "full";
    let bytes_used = bytesOf(states);
    const leave = async (gone, from) => {
      from.splice(from.indexOf(gone), 1);
      bytes_used -= gone.bytes;
      await this.remove([gone.id]);
    };
    while (mine.length >= statesOfText(sealed.length)) {
      const gone = leavingState(mine, wanted, position);
      if (!gone) return "kept";
      await leave(gone, mine);
    }
    while (bytes_used + sealed.length > most) {
      const gone = others[0] ?? leavingState(mine, wanted, position);
      if (!gone) return "full";
      await leave(gone, others.length > 0 ? others : mine);
    }
    for (const one of mine) chain.add(one.id);
    return this.writeSealed({ name: id, sealed, position, tokens, conversation, chain });
  }

  // Writes a file and its record. Where there is no room, those leave that were not used for the longest time.
  async writeSealed({ name, sealed, position, tokens, conversation, chain }) {
    const size = sealed.length, records = await this.records();
    let total = bytesOf(records);
    const leaving = records.filter(({ id }) => id !== name && !chain.has(id))
      .sort((a, b) => a.used_at - b.used_at || b.position - a.position || Number(isState(b)) - Number(isState(a)));
    const makeRoom = async () => {
      const [gone] = leaving.splice(0, 1);
      if (!gone) return false;
      // The state leaves with its page, even one that the text needs.
      const isItsState = ({ id }) => id === gone.id + state_end, waits = leaving.findIndex(isItsState);
      if (waits >= 0) leaving.splice(waits, 1);
      total -= gone.bytes + bytesOf(records.filter(isItsState));
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
    const record = { id: name, bytes: size, tokens, used_at: Date.now(), position, conversations: [conversation] };
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

  // Deletes files, and the states of pages among them.
  async remove(names) {
    if (names.length === 0) return;
    const all = names.flatMap((name) => (name.endsWith(state_end) ? [name] : [name, name + state_end]));
    await inTable(this.database, table, "readwrite", (store) => { for (const name of all) store.delete(name); });
    for (const name of all) await this.folder.removeEntry(name).catch(() => {});
  }

  // Returns what the registry of sessions (service_worker.js) has of a conversation.
  async sessionOf(conversation) {
    const own = (await this.records()).filter(({ conversations }) => conversations.includes(conversation));
    const used_at = own.reduce((last, one) => Math.max(last, one.used_at), 0);
    const pages = own.filter((one) => !isState(one)).length;
    return { conversation, model: this.model, pages, expires_at: used_at + keep_days * 86400000 };
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
