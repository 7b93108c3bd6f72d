// A Dedicated Worker that a tab lends to the SharedWorker of "this device" (lent_store.js): it downloads and writes
// files, for one call.
// Messages in:  {type: "CONNECT"} with a port; over the port {name, args}: a call of FileStore, and {stop}
// Messages out: over the port {name: "has" | "progress", value}, then {done} or {error: {code, name, message}}
import { FileStore } from "./file_store.js";

async function call({ name, args }, port, signal) {
  const tell = (what) => (value) => port.postMessage({ name: what, value });
  const store = await FileStore.open();
  if (name === "keepOnly") return store.keepOnly(...args);
  const [files, how] = args;
  return store.fetchAll(files, { ...how, signal, has: tell("has"), progress: tell("progress") });
}

self.onmessage = ({ ports: [port] }) => {
  const stop = new AbortController();
  port.onmessage = ({ data }) => {
    if (data.stop) {
      stop.abort();
      return;
    }
    call(data, port, stop.signal).then(() => port.postMessage({ done: true }), ({ code, name, message }) => (
      port.postMessage({ error: { code: typeof code === "string" ? code : "", name, message } })))
      .finally(() => self.close());
  };
};
