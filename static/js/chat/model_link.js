// The way from this tab to the one model that all tabs of the profile share (wasm/local_worker.js). There are two ways
// to compute; a probe chooses:
//   "shared"   a SharedWorker with `extendedLifetime` computes. It lives on for some minutes when no page is open, so
//              that the model is still on the GPU after a reload. Only some browsers have it.
//   "tab"      the tab that holds a Web Lock computes in a Dedicated Worker. When that tab goes, the next tab gets the
//              lock, and goes on. A small SharedWorker hands ports from tab to tab (wasm/ports_worker.js); without
//              SharedWorkers, messages go through a BroadcastChannel.
// Without Web Locks each tab has a model of its own. Messages are those of wasm/model_desk.js.
import { root } from "../api.js";
import { mayLock, openChannel, withLock } from "../storage.js";

// Tabs with programs that speak another version of the messages do not meet.
const version = 1;
const name = `moex-model-${version} ${new URL(root).pathname}`;
const session_lock = "moex-session-", home_lock = "moex-home-";
const hello_ms_max = 20000;

// Literal addresses: the service worker finds the files that it keeps by them (static/service_worker.js).
const computing_url = new URL("../../wasm/local_worker.js", import.meta.url);
const ports_url = new URL("../../wasm/ports_worker.js", import.meta.url);
const lent_url = new URL("../../wasm/lent_store_worker.js", import.meta.url);
const living = { name, type: "module", extendedLifetime: true };

// Returns true if this browser knows the option `extendedLifetime`: it then reads it. No worker starts, since the
// address is none.
function knowsLifetime() {
  let is_read = false;
  try {
    new SharedWorker("http://[", { get extendedLifetime() { is_read = true; return true; } });
  } catch { /* it always throws */ }
  return is_read;
}

// ---- ports to the tab that computes

// By ports_worker.js. `onPort(port)` is called with each new port to the home; `onGuest(port)` gives the home the other
// end of a tab's port.
function openPorts(onPort, onGuest) {
  const broker = new SharedWorker(ports_url, { name: `${name} ports`, type: "module" });
  broker.port.onmessage = ({ data: { type }, ports: [port] }) => (type === "PORT" ? onPort : onGuest)(port);
  broker.port.postMessage({ type: "CONNECT" });
  return {
    becomeHome: () => broker.port.postMessage({ type: "HOME" }),
    close: () => broker.port.close(),
  };
}

// The same by a channel that all tabs hear. Messages: {wants: true}, {home: its name}, {to, from, message}. A tab that
// becomes the home again has another name.
function openHeard(id, onPort, onGuest) {
  const guests = new Map();      // ids of the tabs that this home serves, and the ports of their channels
  let home = "", own = "", port = null;
  const guestOf = (tab) => {
    if (guests.has(tab)) return guests.get(tab);
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = ({ data }) => channel.post({ to: tab, from: own, message: data });
    guests.set(tab, port1);
    onGuest(port2);
    return port1;
  };
  const hear = ({ wants, home: named, to, from, message }) => {
    if (wants && own) channel.post({ home: own });
    else if (named && named !== home) {
      own = "";
      home = named;
      port = { postMessage: (one) => channel.post({ to: named, from: id, message: one }), onmessage: null, close() {} };
      onPort(port);
    } else if (own && to === own) guestOf(from).postMessage(message);
    else if (to === id && from === home) port.onmessage?.({ data: message, ports: [] });
  };
  const channel = openChannel(name, hear);
  channel.post({ wants: true });
  return {
    becomeHome() {
      own = crypto.randomUUID();
      guests.clear();
      channel.post({ home: own });
    },
    close: () => channel.close(),
  };
}

// ---- the link

// Connects one tab with the model, wherever it computes.
export class ModelLink {
  // `facts()` returns the payload of START_SESSION. onMessage({type, payload}) hears what comes for this tab; onMoved()
  // is called when the model is computed elsewhere from now on, so that what it was doing is lost, and onBroken(error)
  // when the worker of this tab does not run.
  constructor({ facts, onMessage, onMoved, onBroken }) {
    Object.assign(this, { facts, onMessage, onMoved, onBroken });
    this.id = crypto.randomUUID();
    this.way = "";               // "shared" or "tab", when it is known
    this.port = null;
    this.is_on = false;          // this tab wants to use the model
    this.opening = null;         // promise of open(), once for each page
    this.tries = null;           // AbortController of the wait for the lock
    this.worker = null;          // of this tab, if it computes for all
    this.release = () => {};     // gives the lock back
    this.ports = null;
  }

  // Begins to use the model. What post() sends before there is a port is lost; START_SESSION is sent with each port.
  start() {
    this.is_on = true;
    if (this.port) this.startSession();
    this.opening ??= this.open();
    this.opening.then(() => { if (this.way === "tab") this.tryForLock(); });
  }
  startSession() { this.post("START_SESSION", this.facts()); }
  post(type, payload = {}) { this.port?.postMessage({ type, sessionId: this.id, payload }); }

  // Ends the use. The worker of this tab goes on for other tabs, and ends when none uses it.
  end() {
    this.is_on = false;
    this.post("END_SESSION");
    if (!this.worker) this.tries?.abort();
  }

  async open() {
    // The desk sees by this lock when this tab is gone.
    await new Promise((go) => {
      withLock(session_lock + this.id, {}, () => {
        go();
        return new Promise(() => {});
      });
    });
    if (knowsLifetime() && await this.openShared()) return;
    this.way = "tab";
  }

  take(port) {
    const is_move = this.port !== null;
    this.port?.close();
    this.port = port;
    port.onmessage = ({ data }) => {
      if (this.port === port && data.sessionId === this.id) this.hear(data);
    };
    if (!this.is_on) return;
    if (is_move) this.onMoved();
    this.startSession();
  }
  hear(message) {
    if (message.type === "LEND") this.lend();
    else if (this.is_on) {
      if (message.type === "ACK" && this.way === "shared") this.watch(message.payload.home);
      this.onMessage(message);
    }
  }

  // ---- a SharedWorker computes

  // Resolves to false if the SharedWorker does not start, or cannot compute, or has no WebGPU where this tab has it.
  async openShared() {
    let worker;
    try {
      worker = new SharedWorker(computing_url, living);
    } catch { return false; }
    const can_compute = await new Promise((resolve) => {
      worker.onerror = (event) => {
        event.preventDefault();
        resolve(false);
      };
      worker.port.onmessage = ({ data: { type, payload } }) => {
        const has_its_gpu = payload?.has_webgpu || !globalThis.navigator?.gpu;
        if (type === "HELLO") resolve(payload.can_compute && has_its_gpu);
      };
      setTimeout(resolve, hello_ms_max, false);
    });
    if (!can_compute) {
      worker.port.close();
      return false;
    }
    this.way = "shared";
    this.take(worker.port);
    return true;
  }
  // Starts the SharedWorker again when it is gone, which frees the lock of its name.
  watch(home) {
    if (this.watched === home) return;
    this.watched = home;
    withLock(home_lock + home, {}, (lock) => {
      if (!lock || this.watched !== home) return;
      this.openShared().then((is_open) => {
        if (!is_open && this.is_on) this.onBroken(new Error("its program does not start again"));
      });
    });
  }
  // Lends the SharedWorker a worker that writes files, and passes their messages on: a worker that failed could not say
  // so itself.
  lend() {
    const worker = new Worker(lent_url, { type: "module" });
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = ({ data }) => worker.postMessage(data);
    worker.onmessage = ({ data }) => port1.postMessage(data);
    worker.onerror = (event) => {
      event.preventDefault();
      worker.terminate();
      const message = event.message || "the program that writes files did not load";
      port1.postMessage({ error: { code: "unavailable", name: "Error", message } });
    };
    this.port.postMessage({ type: "LENT", sessionId: this.id }, [port2]);
  }

  // ---- a tab computes

  // Waits for the lock, unless this tab has it or waits already.
  tryForLock() {
    if (this.worker || !this.is_on || (this.tries && !this.tries.signal.aborted)) return;
    const tries = new AbortController();
    this.tries = tries;
    const onPort = (port) => { if (!this.worker) this.take(port); };
    const onGuest = (port) => this.worker?.postMessage({ type: "CONNECT" }, [port]);
    const meet = () => {
      this.ports ??= globalThis.SharedWorker ? openPorts(onPort, onGuest) : openHeard(this.id, onPort, onGuest);
    };
    // Without locks, lock is undefined, and other tabs are left alone.
    withLock(name, { signal: tries.signal }, (lock) => new Promise((release) => {
      if (!this.is_on) {
        this.tries = null;
        return release();
      }
      if (lock) meet();
      this.release = release;
      return this.compute();
    })).catch(() => {});
    if (mayLock()) meet();
  }
  compute() {
    const worker = new Worker(computing_url, { type: "module" });
    this.worker = worker;
    worker.onmessage = ({ data }) => {
      if (data.unused && !this.is_on && this.worker === worker) this.stopComputing();
    };
    worker.onerror = (event) => {
      event.preventDefault();
      if (this.worker !== worker) return;      // it has been ended before
      this.stopComputing();
      this.onBroken(new Error(event.message || "its program did not load"));
    };
    const { port1, port2 } = new MessageChannel();
    worker.postMessage({ type: "CONNECT" }, [port1]);
    this.take(port2);
    this.ports?.becomeHome();
  }
  stopComputing() {
    this.worker?.terminate();
    Object.assign(this, { worker: null, port: null, tries: null });
    this.release();
  }
}
