// The hub's key, pinned at first use (protocol/PROTOCOL.md, "Signatures"): fetches the hub's signature of its manifest
// and compares its key with the one that this browser knows. The page keeps the known key. A hub that signs nothing is
// accepted as long as no key is known, and a browser without Ed25519 checks nothing.
const changes_max = 64;
const manifest_bytes_max = 2 ** 26;

const encoder = new TextEncoder();
const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const fromHex = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (digits) => parseInt(digits, 16));
const isHex = (text, digits) => typeof text === "string" && text.length === digits && /^[0-9a-f]*$/.test(text);

// The form in which people compare keys: the first 128 bits.
export const fingerprintOf = (key) => key.slice(0, 32).replace(/(.{4})(?=.)/g, "$1 ");

// The hub is another one than the known one, or does not prove that it is the same. `key`: its key; "" if it sent none.
export class OtherHub extends Error {
  constructor(message, key = "") {
    super(message);
    this.code = "other_hub";
    this.key = key;
  }
}

const hasEd25519 = () => crypto.subtle?.importKey("raw", new Uint8Array(32), { name: "Ed25519" }, true, ["verify"])
  .then(() => true, (error) => error.name === "DataError") ?? Promise.resolve(false);

async function fits(key, signature, text) {
  try {
    const verifier = await crypto.subtle.importKey("raw", fromHex(key), { name: "Ed25519" }, true, ["verify"]);
    return await crypto.subtle.verify({ name: "Ed25519" }, verifier, fromHex(signature), encoder.encode(text));
  } catch {
    return false;                     // the bytes are no key
  }
}

const isChange = (one) => isHex(one?.from, 64) && isHex(one.to, 64) && isHex(one.signature, 128);
const isManifest = (one) => isHex(one?.sha256, 64) && isHex(one.signature, 128) && Number.isSafeInteger(one.bytes);
function isSignature(one) {
  return isHex(one?.key, 64) && isManifest(one.manifest)
    && Array.isArray(one.changes) && one.changes.length <= changes_max && one.changes.every(isChange);
}

// Follows the changes of the key from `known`, each signed by the key before it. Of two changes of one key, the last
// one counts.
async function isSuccessor(known, key, changes) {
  let reached = known;
  for (let steps = 0; reached !== key; steps += 1) {
    const change = changes.findLast(({ from }) => from === reached);
    if (steps === changes_max || !change) return false;
    if (!await fits(reached, change.signature, `MoEx key 1\n${reached}\n${change.to}`)) return false;
    reached = change.to;
  }
  return true;
}

// Judges a parsed signature. Returns {state, key, fingerprint, package_sha256, bytes}; `state` is "first", "known" or
// "changed". Throws an OtherHub.
export async function judgeSignature(signature, known) {
  if (!isSignature(signature)) throw new OtherHub("The hub's signature cannot be read.");
  const { key, changes, manifest } = signature;
  if (!await hasSignedManifest({ key }, manifest)) {
    throw new OtherHub("The hub's signature does not fit its key.");
  }
  if (known && !await isSuccessor(known, key, changes)) {
    throw new OtherHub(`This hub has the key ${fingerprintOf(key)}; this browser knows ${fingerprintOf(known)}. It is `
      + "another hub, or its operator made a new key: ask them, and compare.", key);
  }
  const state = known === key ? "known" : known ? "changed" : "first";
  return { state, key, fingerprint: fingerprintOf(key), package_sha256: manifest.sha256, bytes: manifest.bytes };
}

// Asks the hub below `base` for its signature. `known`: the key that this browser knows, or "". Returns the result of
// judgeSignature(), or {state: "unsigned"} or {state: "unchecked"}. Throws an OtherHub, or another Error if the hub
// cannot be asked.
export async function checkHub(base, known) {
  if (!await hasEd25519()) return { state: "unchecked" };
  const response = await fetch(new URL("api/signature", base), { cache: "no-store" });
  if (response.status >= 500 || response.status === 429) throw new Error(`the hub answered ${response.status}`);
  if (response.ok) return judgeSignature(await response.json().catch(() => ({})), known);
  if (known) throw new OtherHub(`This hub signs nothing; this browser knows its key ${fingerprintOf(known)}.`);
  return { state: "unsigned" };
}

// Resolves to true if `hub`, a result of checkHub(), has signed the manifest {sha256, bytes, signature}.
export async function hasSignedManifest({ key }, manifest) {
  if (!isManifest(manifest)) return false;
  return fits(key, manifest.signature, `MoEx manifest 1\n${manifest.sha256}\n${manifest.bytes}`);
}

// Resolves to true if `hub`, a result of checkHub(), has signed the blob of a layer, or if it signs nothing that this
// browser could check.
export async function hasSignedLayer(hub, blob, signature) {
  return !hub.key || fits(hub.key, signature, `MoEx layer 1\n${hub.package_sha256}\n${blob}`);
}

// Fetches the manifest that `hub`, a result of checkHub(), names. Resolves to the set of all blobs' hashes in it.
export async function blobsOf(base, hub) {
  const response = await fetch(new URL("api/manifest", base), { cache: "no-cache" });
  const bytes = response.ok && hub.bytes <= manifest_bytes_max ? await response.arrayBuffer() : new ArrayBuffer(0);
  if (toHex(await crypto.subtle.digest("SHA-256", bytes)) !== hub.package_sha256) {
    throw new Error("the hub does not send the manifest that it signs");
  }
  return new Set(JSON.parse(new TextDecoder().decode(bytes)).experts.flat().filter(Boolean));
}
