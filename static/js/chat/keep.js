// Stores conversations in this browser's IndexedDB, encrypted (sealed.js), or in this page's memory if the browser
// stores nothing or has no cryptography. Every write merges with the changes of other tabs, and notifies them.
//
// A record is {id, sealed}: `sealed` is the whole conversation as JSON, its title included. Records of older pages are
// conversations in plain; each is encrypted when a page opens. The cipher is asynchronous and a transaction is
// not, so a record is read, merged and encrypted, and then written only if it is still the one that was read.
import { canSeal, keys_id, newCipherKey, seal, takeKeys, unseal } from "../sealed.js";
import { StorageError, inTable, openChannel, openDatabase } from "../storage.js";
import { linked, merge } from "./conversation.js";

export const database_name = "moex-chat";
const table = "conversations";
const channel_name = "moex-chat";
const encoder = new TextEncoder(), decoder = new TextDecoder();

// Names the version of a record, or of a missing one: each encryption draws another nonce, and only older pages wrote
// plain records.
const versionOf = (record) => record?.sealed?.subarray(0, 12).join() ?? (record ? "plain" : "none");

// Stores conversations for this page and for other tabs.
export class Keeper {
  // onChange({type: "changed" | "removed", id}) reports changes by other tabs; onTrouble(error) reports a failed write.
  static async open({ onChange = () => {}, onTrouble = () => {} } = {}) {
    const keeper = new Keeper();
    keeper.onTrouble = onTrouble;
    keeper.memory = new Map();
    keeper.keys = null;          // the promise of the keys, from the first read or write on
    try {
      keeper.database = await openDatabase(database_name, (made) => made.createObjectStore(table, { keyPath: "id" }));
      if (!canSeal()) onTrouble(new StorageError("this page has no cryptography"));
    } catch (error) {
      keeper.database = null;
      onTrouble(error);
    }
    keeper.channel = openChannel(channel_name, onChange);
    return keeper;
  }

  // Resolves to the key, made at first use.
  async key() {
    this.keys ??= takeKeys(this.database, table, async () => ({ cipher: await newCipherKey() }));
    return (await this.keys).cipher;
  }

  // Returns the conversation of a record; null if there is none, or if it cannot be decrypted.
  async read(record) {
    if (!record) return null;
    if (!record.sealed) return linked(record);
    const bytes = await unseal(await this.key(), record.id, record.sealed).catch(() => null);
    return bytes ? linked(JSON.parse(decoder.decode(bytes))) : null;
  }

  async all() {
    if (!this.database) return [...this.memory.values()];
    const records = await inTable(this.database, table, "readonly", (store) => store.getAll());
    const kept = [];
    for (const record of records.filter(({ id }) => id !== keys_id)) {
      const one = record.sealed ? await this.read(record) : await this.put(linked(record));
      if (one) kept.push(one);
    }
    return kept;
  }

  async get(id) {
    if (!this.database) return this.memory.get(id) ?? null;
    return this.read(await inTable(this.database, table, "readonly", (store) => store.get(id)));
  }

  // Stores `conversation`, merged with the additions of other tabs. Resolves to the merged conversation.
  async put(conversation) {
    let kept = conversation;
    try {
      if (this.database) kept = await this.putSealed(conversation);
      else this.memory.set(conversation.id, conversation);
      this.channel?.post({ type: "changed", id: conversation.id });
    } catch (error) {
      this.memory.set(conversation.id, conversation);
      this.onTrouble(error);
    }
    return kept;
  }
  async putSealed(conversation) {
    const { id } = conversation;
    const key = await this.key();
    for (;;) {
      const before = await inTable(this.database, table, "readonly", (store) => store.get(id));
      const kept = merge(await this.read(before), conversation);
      const sealed = await seal(key, id, encoder.encode(JSON.stringify(kept)));
      let is_written = false;
      await inTable(this.database, table, "readwrite", (store) => {
        const request = store.get(id);
        request.onsuccess = () => {
          is_written = versionOf(request.result) === versionOf(before);
          if (is_written) store.put({ id, sealed });
        };
      });
      if (is_written) return kept;
    }
  }

  // Closes the database. Call it before all data is deleted: an open database would block the deletion, and later
  // writes would create the database again.
  close() {
    this.database?.close();
    this.database = null;
    this.channel?.close();
    this.channel = null;
  }

  async remove(id) {
    this.memory.delete(id);
    try {
      if (this.database) {
        await inTable(this.database, table, "readwrite", (store) => { store.delete(id); });
      }
      this.channel?.post({ type: "removed", id });
    } catch (error) {
      this.onTrouble(error);
    }
  }
}
