// The contributor's identity: an Ed25519 key that is created in this browser and exported only to a file under a
// passphrase. The hub sees its public half and signatures (protocol/PROTOCOL.md, IDENTITY). This module signs,
// stores and encrypts; it does not use the page.
import { inTable, openDatabase } from "../storage.js";
import { say } from "../words/join.js";

export const database_name = "moex-identity";
const table = "keys";
const mine = "mine";
const algorithm = { name: "Ed25519" };
// Number of iterations that OWASP recommended in 2023 for PBKDF2 with HMAC-SHA-256.
const iterations = 600000;

const encoder = new TextEncoder();
const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const toBase64 = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)));
const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// Runs `act(table)` and resolves to the result of its request.
async function inKeys(mode, act) {
  const database = await openDatabase(database_name, (made) => made.createObjectStore(table));
  try {
    return await inTable(database, table, mode, act);
  } finally {
    database.close();
  }
}

// Returns the public half of a private key; a JWK contains both.
async function publicHex(private_key) {
  const { x } = await crypto.subtle.exportKey("jwk", private_key);
  return toHex(fromBase64(x.replace(/-/g, "+").replace(/_/g, "/")));
}

async function sealingKey(passphrase, salt, rounds) {
  const material = await crypto.subtle.importKey("raw", encoder.encode(passphrase), "PBKDF2", false, ["deriveKey"]);
  return crypto.subtle.deriveKey({ name: "PBKDF2", hash: "SHA-256", salt, iterations: rounds }, material,
    { name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
}

// An owner is the contributor's key pair {private_key, public_key}, with the public key in hexadecimal digits.

// Resolves to the owner that this browser has stored, or to null.
export async function recallOwner() {
  try { return await inKeys("readonly", (store) => store.get(mine)) ?? null; } catch { return null; }
}

// Creates and stores an owner. If another tab has created an owner in the meantime, that owner is used. Throws if this
// browser has no Ed25519 or no storage.
export async function makeOwner() {
  const { privateKey: private_key } = await crypto.subtle.generateKey(algorithm, true, ["sign", "verify"]);
  const owner = { private_key, public_key: await publicHex(private_key) };
  try {
    await inKeys("readwrite", (store) => store.add(owner, mine));
    return owner;
  } catch (error) {
    if (error.name === "ConstraintError") return recallOwner();
    throw error;
  }
}

export const dropOwner = () => inKeys("readwrite", (store) => store.delete(mine));

export async function sign(owner, text) {
  return toHex(await crypto.subtle.sign(algorithm, owner.private_key, encoder.encode(text)));
}

// Returns the text of an export file. Only the passphrase opens it.
export async function sealOwner(owner, passphrase) {
  const salt = crypto.getRandomValues(new Uint8Array(16));
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const key = await sealingKey(passphrase, salt, iterations);
  const bytes = await crypto.subtle.exportKey("pkcs8", owner.private_key);
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, key, bytes);
  return `${JSON.stringify({
    moex_identity: 1, public_key: owner.public_key, kdf: "PBKDF2-HMAC-SHA256", iterations, salt: toBase64(salt),
    cipher: "AES-256-GCM", iv: toBase64(iv), private_key: toBase64(sealed),
  }, null, 1)}\n`;
}

// Replaces the stored owner by the owner of the file. Throws with a sentence for the user.
export async function openSealedOwner(text, passphrase) {
  let file;
  try { file = JSON.parse(text); } catch { file = null; }
  const is_ours = file?.moex_identity === 1 && Number.isInteger(file.iterations) && file.iterations <= 10 * iterations
    && [file.salt, file.iv, file.private_key].every((one) => typeof one === "string");
  if (!is_ours) throw new Error(say("no_identity"));

  let bytes;
  try {
    const key = await sealingKey(passphrase, fromBase64(file.salt), file.iterations);
    const iv = fromBase64(file.iv);
    bytes = await crypto.subtle.decrypt({ name: "AES-GCM", iv }, key, fromBase64(file.private_key));
  } catch {
    throw new Error(say("bad_passphrase"));
  }
  const private_key = await crypto.subtle.importKey("pkcs8", bytes, algorithm, true, ["sign"]);
  const owner = { private_key, public_key: await publicHex(private_key) };
  await inKeys("readwrite", (store) => store.put(owner, mine));
  return owner;
}

// The texts that an owner signs. They equal identity_text() and forget_text() of protocol/identity.h.
export const identityText = (nonce, worker_id) => `MoEx identity 1\n${nonce}\n${location.origin}\n${worker_id}`;
export const forgetText = (challenge) => `MoEx forget 1\n${challenge}\n${location.origin}`;
