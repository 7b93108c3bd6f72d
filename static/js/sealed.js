// Texts and pages that a browser keeps, encrypted by AES-GCM. The key was made in this browser and cannot be exported;
// scripts of this site can use it. The browser keeps it in the same profile, in the database of what it encrypts.
// Sealed bytes are a random nonce (12 bytes), then encrypted bytes and their tag; a name is authenticated with them.
import { StorageError, inTable } from "./storage.js";

export const keys_id = "keys";      // of the record of the keys, among the other records of a table
const nonce_bytes = 12;
const encoder = new TextEncoder();
const how = (name, nonce) => ({ name: "AES-GCM", iv: nonce, additionalData: encoder.encode(name) });

// False on pages that have no cryptography: those that are neither HTTPS nor of this machine.
export const canSeal = () => Boolean(globalThis.crypto?.subtle);

export const newCipherKey = () => (
  crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]));

// Returns the record of the keys in `table`; at first use, make() makes it, without its id. Two tabs may do so at once:
// the keys of the first are used. Rejects with a StorageError where the page has no cryptography.
export async function takeKeys(database, table, make) {
  if (!canSeal()) throw new StorageError("this page has no cryptography: it is neither HTTPS nor of this machine");
  const find = () => inTable(database, table, "readonly", (store) => store.get(keys_id));
  const found = await find();
  if (found) return found;
  const made = { ...await make(), id: keys_id };
  await inTable(database, table, "readwrite", (store) => {
    const request = store.get(keys_id);
    request.onsuccess = () => request.result ?? store.put(made);
  });
  return find();
}

// Returns `bytes`, sealed.
export async function seal(key, name, bytes) {
  const nonce = crypto.getRandomValues(new Uint8Array(nonce_bytes));
  const encrypted = await crypto.subtle.encrypt(how(name, nonce), key, bytes);
  const sealed = new Uint8Array(nonce_bytes + encrypted.byteLength);
  sealed.set(nonce);
  sealed.set(new Uint8Array(encrypted), nonce_bytes);
  return sealed;
}

// Returns the bytes that were sealed. Rejects if they were altered, or sealed by another name or key.
export async function unseal(key, name, sealed) {
  const bytes = new Uint8Array(sealed);
  const cipher = how(name, bytes.subarray(0, nonce_bytes));
  return new Uint8Array(await crypto.subtle.decrypt(cipher, key, bytes.subarray(nonce_bytes)));
}
