// Stores conversations in this browser's IndexedDB, or in this page's memory if the browser forbids it. Every write is
// a transaction that merges with the changes of other tabs, and notifies the other tabs.
import { inTable, openChannel, openDatabase } from "../storage.js";
import { linked, merge } from "./conversation.js";

export const database_name = "moex-chat";
const table = "conversations";
const channel_name = "moex-chat";

// Stores conversations for this page and for other tabs.
export class Keeper {
  // onChange({type: "changed" | "removed", id}) reports changes by other tabs; onTrouble(error) reports a failed write.
  static async open({ onChange = () => {}, onTrouble = () => {} } = {}) {
    const keeper = new Keeper();
    keeper.onTrouble = onTrouble;
    keeper.memory = new Map();
    try {
      keeper.database = await openDatabase(database_name, (made) => made.createObjectStore(table, { keyPath: "id" }));
    } catch (error) {
      keeper.database = null;
      onTrouble(error);
    }
    keeper.channel = openChannel(channel_name, onChange);
    return keeper;
  }

  async all() {
    if (!this.database) return [...this.memory.values()];
    return (await inTable(this.database, table, "readonly", (store) => store.getAll())).map(linked);
  }

  async get(id) {
    if (!this.database) return this.memory.get(id) ?? null;
    const kept = await inTable(this.database, table, "readonly", (store) => store.get(id));
    return kept ? linked(kept) : null;
  }

  // Stores `conversation`, merged with the additions of other tabs. Resolves to the merged conversation.
  async put(conversation) {
    let kept = conversation;
    try {
      if (this.database) {
        await inTable(this.database, table, "readwrite", (store) => {
          const request = store.get(conversation.id);
          request.onsuccess = () => {
            kept = merge(request.result ?? null, conversation);
            store.put(kept);
          };
        });
      } else {
        this.memory.set(conversation.id, conversation);
      }
      this.channel?.post({ type: "changed", id: conversation.id });
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
        await inTable(this.database, table, "readwrite", (store) => { store.delete(id); });
      }
      this.channel?.post({ type: "removed", id });
    } catch (error) {
      this.onTrouble(error);
    }
  }
}
