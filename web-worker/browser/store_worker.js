// A second Dedicated Worker of a tab. It writes the blobs that the tab keeps and evicts blobs to make room, so
// that neither blocks the worker that serves. It handles one message after the other, except that several blobs are
// written at a time: most of a write is waiting for the browser's storage service (bench/tab_store_bench.mjs).
// Messages in:  {type: "serves", model} | {type: "put", ticket, hex, bytes} | {type: "save", ticket}
//               | {type: "used", used: [[hex, bytes, uses]]}, bytes 0: the blob may not be on the disk
// Messages out: {ticket, kept, reason, is_full, device_bytes, gone: [hex]}; for a save {ticket}
import { dropCache } from "./storage.js";
import { StoreFolder, Uses, leavingOrder } from "./store_folder.js";

const earlier_cache = "moex-weights-v1";      // the cache in which an earlier version stored experts
// Limit of evictions for one new blob: the browser reports freed bytes with a delay.
const gone_max = 8;
const save_every_ms = 10000;                  // interval for writing the use counts to uses.json
const puts = new Map();                       // hash -> promise of the put that is under way
let folder = null;
let uses = null;
// Names of files that have no recorded use; null until they are first needed.
let strays = null;
let save_timer = 0;

async function open() {
  folder = await StoreFolder.open();
  uses = new Uses(folder);
  await uses.load();
}
const opened = open();
opened.catch(() => {});                       // the error is reported with the first blob that is to be stored

function saveLater() {
  save_timer ||= setTimeout(() => {
    save_timer = 0;
    next(() => uses.save()).catch(() => {});      // the next save writes what this one did not
  }, save_every_ms);
}

// Returns true for an error that occurs when another tab is writing the same file, or has just renamed it.
const isBusy = ({ name }) => ["NoModificationAllowedError", "InvalidStateError", "NotFoundError"].includes(name);

async function keep({ hex, bytes }) {
  const gone = [];
  for (;;) {
    try {
      await folder.write(hex, bytes);
      return { kept: true, gone };
    } catch (error) {
      if (isBusy(error) && await folder.find(hex)) return { kept: true, gone };
      if (error.name !== "QuotaExceededError") return { kept: false, gone, reason: error.message };
    }
    const left = gone.length < gone_max ? await next(() => makeRoom(hex)) : [];
    if (left.length === 0) return { kept: false, gone, is_full: true, device_bytes: await deviceBytes() };
    gone.push(...left);
  }
}

async function deviceBytes() {
  return (await folder.listed()).reduce((sum, { bytes }) => sum + bytes, 0);
}

// Evicts one file, or the whole cache of an earlier version, and returns the names of the deleted entries. The order
// is: the cache of an earlier version, files without a known use, then a blob in the order of leavingOrder(). A blob of
// the served model is evicted only if it was used less than `hex`; files of the model of "this device" never are.
async function makeRoom(hex) {
  if (await dropCache(earlier_cache).catch(() => false)) return [earlier_cache];

  await uses.load();
  const listed = new Set((await folder.listed()).map(({ sha256 }) => sha256));
  strays ??= (await folder.files()).map(([name]) => name).filter((name) => !name.endsWith(".part"));
  const known = uses.names();
  strays = strays.filter((name) => !known.has(name) && !listed.has(name) && !puts.has(name.slice(0, hex.length)));
  for (let name = strays.pop(); name; name = strays.pop()) if (await folder.remove(name)) return [name];

  const blobs = new Map();
  for (const name of known) {
    const one = uses.get(name);
    if (one.bytes > 0 && !listed.has(name)) blobs.set(name, one);
  }
  const comer = uses.get(hex);
  for (const name of leavingOrder(blobs, uses.served)) {
    const { model, uses: count } = blobs.get(name);
    if (model === uses.served && count >= comer.uses) return [];
    uses.drop(name);
    if (await folder.remove(name)) return [name];      // false if a tab is reading the file, or if it is gone
  }
  return [];
}

async function answer(message) {
  await opened;
  if (message.type === "serves") {
    if (uses.served && uses.served !== message.model) await uses.save();
    uses.served = message.model;
  } else if (message.type === "used") {
    for (const [hex, bytes, count] of message.used) uses.add(hex, bytes, count);
  } else if (message.type === "save") await uses.save();
  return {};
}

// Stores a blob, beside other blobs; after an earlier put of the same blob.
function put({ hex, bytes }) {
  const { length } = bytes;
  const before = puts.get(hex);
  const work = (async () => {
    await opened;
    await before?.catch(() => {});
    const told = await keep({ hex, bytes });
    if (told.kept) await next(() => uses.add(hex, length, 0));      // not while the counts are being written
    return told;
  })().finally(() => {
    if (puts.get(hex) === work) puts.delete(hex);
  });
  puts.set(hex, work);
  return work;
}

let running = Promise.resolve();
// Runs `work` after the earlier calls of next() have ended. Rejects with its error.
function next(work) {
  const done = running.then(work);
  running = done.catch(() => {});
  return done;
}
self.onmessage = async ({ data }) => {
  let told;
  try {
    if (data.type === "put") told = await put(data);
    else {
      if (data.type === "save") await Promise.allSettled(puts.values());
      told = await next(() => answer(data));
    }
  } catch (error) {
    told = { kept: false, gone: [], reason: error.message };
  }
  if (data.ticket !== undefined) self.postMessage({ ticket: data.ticket, ...told });
  if (data.type !== "save") saveLater();
};
