// Stores conversations in this browser's IndexedDB, or in this page's memory if the browser forbids it. Every write is
// a transaction that merges with the changes of other tabs, and notifies the other tabs.
import { linked, merge } from "./conversation.js";

export const database_name = "moex-chat";
const store_name = "conversations";
const channel_name = "moex-chat";

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
const finished = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onerror = () => reject(transaction.error);
  transaction.onabort = () => reject(transaction.error ?? new Error("the browser gave up the write"));
});

async function openDatabase() {
  const request = indexedDB.open(database_name, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(store_name, { keyPath: "id" });
  const database = await done(request);
  // Close the database when another tab deletes all data: an open database would block the deletion.
  database.onversionchange = () => database.close();
  return database;
}

// Stores conversations for this page and for other tabs.
export class Keeper {
  // onChange({type: "changed" | "removed", id}) reports changes by other tabs; onTrouble(error) reports a failed write.
  static async open({ onChange = () => {}, onTrouble = () => {} } = {}) {
    const keeper = new Keeper();
    keeper.onTrouble = onTrouble;
    keeper.memory = new Map();
    try {
      keeper.database = await openDatabase();
    } catch (error) {
      keeper.database = null;
      onTrouble(error);
    }
    if (globalThis.BroadcastChannel) {
      keeper.channel = new BroadcastChannel(channel_name);
      keeper.channel.onmessage = ({ data }) => onChange(data);
    }
    return keeper;
  }

  async all() {
    if (!this.database) return [...this.memory.values()];
    return (await done(this.database.transaction(store_name).objectStore(store_name).getAll())).map(linked);
  }

  async get(id) {
    if (!this.database) return this.memory.get(id) ?? null;
    const kept = await done(this.database.transaction(store_name).objectStore(store_name).get(id));
    return kept ? linked(kept) : null;
  }

  // Stores `conversation`, merged with the additions of other tabs. Resolves to the merged conversation.
  async put(conversation) {
    let kept = conversation;
    try {
      if (this.database) {
        const transaction = this.database.transaction(store_name, "readwrite");
        const store = transaction.objectStore(store_name);
        const request = store.get(conversation.id);
        request.onsuccess = () => {
          kept = merge(request.result ?? null, conversation);
          store.put(kept);
        };
        await finished(transaction);
      } else {
        this.memory.set(conversation.id, conversation);
      }
      this.channel?.postMessage({ type: "changed", id: conversation.id });
    } catch (error) {
      this.memory.set(conversation.id, conversation);
      this.onTrouble(error);
    }
    return kept;
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
        const transaction = this.database.transaction(store_name, "readwrite");
        transaction.objectStore(store_name).delete(id);
        await finished(transaction);
      }
      this.channel?.postMessage({ type: "removed", id });
    } catch (error) {
      this.onTrouble(error);
    }
  }
}
