// The Dedicated Worker of the join page: loads the WASM worker core and gives it a GPU, a socket, blobs and timers
// (Module.mx).
// Messages in:  {type: "start", token, nickname, worker_key, hub_key, budget_bytes, keep_bytes, host_bytes, eviction,
//                power_percent, on_mains}
//               | {type: "budget", bytes} | {type: "keep", bytes, host_bytes} | {type: "power", percent}
//               | {type: "mains", on_mains}      true, false, or null if the browser does not report it
//               | {type: "thread", id, ...}      of a thread (page_threads.js)
//               | {type: "identity", worker_id, public_key, signature, shows_nickname}
//               | "pause" | "resume" | "online" | "stop" | "leave"      leave: stop once others hold the experts
//               | {type: "leave", heard}      the page is closed; `heard`, a shared Int32Array, becomes 1 once the hub
//                                             knows, or is null
// Messages out: {type: "status", status} on every report; {type: "failed", reason} when the worker cannot even start;
//               {type: "thread", id, ...}
import createModule from "./moex-worker.js";
import { Blobs } from "./blobs.js";
import { ExpertFiles } from "./expert_files.js";
import { Host } from "./host.js";
import { blobsOf, checkHub, fingerprintOf, hasSignedLayer } from "./hub_key.js";
import { PageThreads } from "./page_threads.js";

const decoder = new TextDecoder();
const encoder = new TextEncoder();
const host = new Host();
const { gpu, mx } = host;
let wasm = null;
const withBytes = (bytes, f) => host.withBytes(bytes, f);
const withText = (text, f) => host.withText(text, f);

const threads = new PageThreads((message, moved) => self.postMessage(message, moved));
const startThread = (program, name) => threads.start(program, name);
const files = new ExpertFiles(startThread, tellStore);
const blobs = new Blobs(new URL("../weights/", import.meta.url).href, files, startThread);
const timers = new Map();
const soon = new MessageChannel();
soon.port1.onmessage = ({ data }) => strike(data);
function strike(ticket) {
  if (timers.delete(ticket)) wasm._mx_on_timer(ticket);
}
const closed_within_ms = 3000;
// RESULT, GROUP_RESULT and SPAN_ANSWER, and where a frame has its type (protocol/PROTOCOL.md).
const answers = [2, 22, 37], type_at = 6;
let socket = null;
let num_checks = 0;
let check = 0;               // number of the check of the hub's key that runs; 0: none
let known_key = "";          // the hub's key that this browser knows
let next_hub = "";           // id of the hub of the fleet to connect to; empty: any
let hub = { state: "none" };  // result of the newest check (hub_key.js), with its blobs

// Checks that the hub is the known one. Throws an OtherHub, or another Error if it cannot be checked.
async function checkKey() {
  const base = new URL("..", import.meta.url);
  const found = await checkHub(base, known_key);
  if (found.package_sha256 !== hub.package_sha256) found.blobs = found.key ? await blobsOf(base, found) : null;
  else found.blobs = hub.blobs;
  return found;
}

Object.assign(mx, {
  connect() {
    socket?.close(1000);                       // a worker has at most one open socket
    socket = null;
    num_checks += 1;
    const number = num_checks;
    check = number;
    checkKey().then((found) => {
      if (check !== number) return;
      check = 0;
      hub = found;
      known_key = found.key ?? known_key;
      mx.openSocket();
    }, (error) => {
      if (check !== number) return;
      check = 0;
      if (error.code !== "other_hub") {
        const why = error instanceof TypeError ? "" : error.message;       // TypeError: no network, no hub
        withText(why, (address, size) => wasm._mx_on_closed(1006, address, size));
        return;
      }
      hub = { state: "other", key: error.key, fingerprint: fingerprintOf(error.key) };
      withText(error.message, (address, size) => wasm._mx_on_other_hub(address, size));
    });
  },
  nextHub(id) { next_hub = decoder.decode(id); },
  openSocket() {
    const url = new URL("../worker", import.meta.url);
    if (next_hub) url.searchParams.set("hub", next_hub);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const opened = new WebSocket(url);
    opened.binaryType = "arraybuffer";
    socket = opened;
    opened.onopen = () => { if (socket === opened) wasm._mx_on_open(); };
    opened.onmessage = ({ data }) => {
      if (socket !== opened) return;
      if (typeof data === "string") wasm._mx_on_text();
      else host.giveFrame(new Uint8Array(data));
    };
    opened.onclose = ({ code, reason }) => {
      if (socket !== opened) return;
      socket = null;
      withText(reason, (address, size) => wasm._mx_on_closed(code, address, size));
    };
  },
  send(frame) {
    if (socket?.readyState !== WebSocket.OPEN) return;
    host.copies += 1;
    if (answers.includes(frame[type_at])) blobs.answered_at = performance.now();
    socket.send(frame);
  },
  // Pages may close with code 1000 or 3000 to 4999 only, so every other code of the protocol becomes a plain 1000. A
  // reason has at most 123 bytes. A dead connection never answers the close frame, so a timer reports the close after
  // closed_within_ms.
  close(code, reason) {
    const closing = socket;
    if (check && !closing) {
      check = 0;
      queueMicrotask(() => withText("", (address, size) => wasm._mx_on_closed(code, address, size)));
    }
    if (!closing) return;
    const words = decoder.decode(reason).replace(/[^\x20-\x7e]/g, "?").slice(0, 120);
    closing.close(code >= 3000 ? code : 1000, words);
    setTimeout(() => {
      if (socket !== closing) return;
      socket = null;
      withText(words, (address, size) => wasm._mx_on_closed(1006, address, size));
    }, closed_within_ms);
  },

  fetchBlob(hex, size, urgent, ticket) {
    const name = decoder.decode(hex);
    if (hub.blobs && !hub.blobs.has(name)) {
      const why = `blob ${name.slice(0, 12)} is not in the manifest that the hub signed`;
      setTimeout(() => withText(why, (address, length) => wasm._mx_on_fetched(ticket, 0, 0, address, length)));
      return;
    }
    blobs.fetch(name, size, urgent,
      (bytes, fromNetwork) => wasm._mx_on_fetch_progress(ticket, bytes, fromNetwork ? 1 : 0),
      (bytes, reason) => {
        if (bytes) withBytes(bytes, (address, count) => wasm._mx_on_fetched(ticket, address, count, 0, 0));
        else withText(reason, (address, count) => wasm._mx_on_fetched(ticket, 0, 0, address, count));
      });
  },
  // Layers are not in the manifest. A hub that signs names each with a signature of its own.
  acceptLayer(hex, signature, ticket) {
    const name = decoder.decode(hex);
    const { blobs: signed } = hub;
    hasSignedLayer(hub, name, decoder.decode(signature)).then((accepted) => {
      if (accepted) signed?.add(name);
      wasm._mx_on_accepted(ticket, accepted ? 1 : 0);
    });
  },
  cancelFetches: () => blobs.cancel(),
  // A hub that names another package than the signed one has just changed it, or is not the hub that signed: the worker
  // connects again.
  servesModel(model) {
    const name = decoder.decode(model);
    if (!hub.blobs || name === hub.package_sha256) {
      files.serves(name);
      blobs.serves(name);
    } else mx.close(1000, encoder.encode("the hub's model is not the one that it signed"));
  },

  // A timer of 0 ms is replaced by a message, because browsers delay nested timers by 4 ms.
  setTimer(delay, ticket) {
    if (delay > 0) timers.set(ticket, setTimeout(() => strike(ticket), delay));
    else {
      timers.set(ticket, 0);
      soon.port2.postMessage(ticket);
    }
  },
  clearTimer(ticket) {
    clearTimeout(timers.get(ticket));
    timers.delete(ticket);
  },
  report(json) {
    const status = JSON.parse(decoder.decode(json));
    told = status;
    core_downloaded = status.bytes_downloaded;
    tellFiles();
    blobs.letCopy(status.phase === "serving");
    status.hub_key = { state: hub.state, key: hub.key ?? "", fingerprint: hub.fingerprint ?? "" };
    status.bytes_in_memory = blobs.memory_bytes;
    status.keep_alive_writes = gpu.keep_alive_writes;
    status.keep_alive_dispatches = gpu.keep_alive_dispatches;
    status.keep_alive_period_us = gpu.pace?.period_us ?? 0;
    // Total copies, allocations and promises between the socket, the WASM and the GPU since the start; a test divides
    // the totals by the number of rounds.
    status.border = { copies: host.copies + gpu.copies, mallocs: host.mallocs, promises: gpu.promises };
    // A time of day, because the page counts time from another origin.
    status.retry_at = performance.timeOrigin + status.retry_at_ms;
    self.postMessage({ type: "status", status });
  },
});

// Changes of the stored files are reported even when the worker core reports nothing, at most ten times a second.
let told = null;             // the newest status
let core_downloaded = 0;     // bytes that the worker core had downloaded then; copies for the disk are not among them
let store_timer = 0;
function tellStore() {
  if (!store_timer && told) store_timer = setTimeout(tellStoreNow, 100);
}
function tellStoreNow() {
  store_timer = 0;
  tellFiles();
  self.postMessage({ type: "status", status: told });
}
function tellFiles() {
  Object.assign(told, {
    store: files.told, bytes_to_store: blobs.bytes_to_store, blobs_refused: blobs.refused,
    bytes_downloaded: core_downloaded + blobs.copied_bytes,
  });
}

// The GPU may stay awake only if all of its power is lent and the machine runs on mains, not on battery.
const lent = { power_percent: 100, on_mains: null };
function judgeAwake({ percent = lent.power_percent, power_percent = percent, on_mains = lent.on_mains }) {
  Object.assign(lent, { power_percent, on_mains });
  gpu.may_stay_awake = power_percent >= 100 && on_mains === true;
}

const early = [];
function handle(message) {
  const type = message.type ?? message;
  if (["start", "power", "mains"].includes(type)) judgeAwake(message);
  if (type === "start") {
    blobs.host_bytes = message.host_bytes ?? 0;
    known_key = message.hub_key ?? "";
  }
  if (type === "start") withText(JSON.stringify(message), (address, size) => wasm._mx_start(address, size));
  else if (type === "pause") wasm._mx_pause();
  else if (type === "resume") wasm._mx_resume();
  else if (type === "online") wasm._mx_on_network_back();
  else if (type === "leave" || type === "stop") {
    if (type === "leave") wasm._mx_leave();
    else wasm._mx_stop();
    if (message.heard) Atomics.store(message.heard, 0, 1);
    files.save();
  }
  else if (type === "budget") wasm._mx_set_budget(message.bytes);
  else if (type === "keep") {
    blobs.host_bytes = message.host_bytes;
    wasm._mx_set_keep(message.bytes);
  }
  else if (type === "power") wasm._mx_set_power(message.percent);
  else if (type === "identity") {
    withText(message.public_key + message.signature, (address, size) => {
      wasm._mx_identify(address, size, message.worker_id, message.shows_nickname ? 1 : 0);
    });
  }
}
self.onmessage = ({ data }) => {
  if (data.type === "thread") threads.hear(data);
  else if (wasm) handle(data);
  else early.push(data);
};

host.load(createModule, import.meta.url).then(
  () => {
    wasm = host.wasm;
    for (const message of early.splice(0)) handle(message);
  },
  (error) => self.postMessage({ type: "failed", reason: `The worker program did not load: ${error.message ?? error}` }),
);

// Report an error that nothing caught; otherwise the tab would still show "serving" and answer no call.
function endWith(reason) {
  mx.report = () => {};                        // a later status of the worker core must not hide this failure
  clearTimeout(store_timer);
  try {
    wasm?._mx_stop();
  } catch (error) {
    console.error("worker: it did not stop cleanly:", error);
  }
  socket?.close(1000);
  self.postMessage({ type: "failed", reason: `The worker stopped: ${reason?.message ?? reason}` });
  self.close();
}
self.addEventListener("unhandledrejection", ({ reason }) => endWith(reason));
self.addEventListener("error", (event) => {
  event.preventDefault();                      // it is reported here, and not by the page once more
  console.error("worker:", event.error ?? event.message);
  endWith(event.error ?? event.message);
});
