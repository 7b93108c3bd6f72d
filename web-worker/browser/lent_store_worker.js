// A Dedicated Worker that a tab lends to the SharedWorker of "this device" (lent_store.js): it downloads and writes
// files, for one call. The tab passes the messages on.
// Messages in:  {name, args}: a call of FileStore, and {stop}
// Messages out: {name: "has" | "progress", value}, then {done} or {error: {code, name, message}}
import { FileStore } from "./file_store.js";

const stop = new AbortController();

async function call({ name, args }) {
  const tell = (what) => (value) => self.postMessage({ name: what, value });
  const store = await FileStore.open();
  if (name === "keepOnly") return store.keepOnly(...args);
  const [files, how] = args;
  return store.fetchAll(files, { ...how, signal: stop.signal, has: tell("has"), progress: tell("progress") });
}

self.onmessage = ({ data }) => {
  if (data.stop) {
    stop.abort();
    return;
  }
  call(data).then(() => self.postMessage({ done: true }), ({ code, name, message }) => (
    self.postMessage({ error: { code: typeof code === "string" ? code : "", name, message } })))
    .finally(() => self.close());
};
