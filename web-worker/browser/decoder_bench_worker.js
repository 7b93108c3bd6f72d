// The Dedicated Worker of /bench.html for whole models. Messages in: {models: [{shape, weights, kv, fetch, tokens,
// turns, ablation, kernels, keep_alive}, ...]}. Messages out: {adapter}, {stage}, {row}, {done: shape}, {finished:
// true} after the last model, or {reason} when the bench cannot continue. With `keep_alive` false, no keep-alive writes
// are sent, and the GPU process notices finished work by itself.
import createModule from "./moex-local.js";
import { Host } from "./host.js";
import { BrowserText } from "./text.js";

const host = new Host();
const decoder = new TextDecoder();
let models = [];

function runNext() {
  const model = models.shift();
  if (!model) {
    self.postMessage({ finished: true });
    return;
  }
  host.gpu.keep_alive_allowed = model.keep_alive !== false;
  host.withText(JSON.stringify(model), (address, size) => host.wasm._mx_decoder_bench_run(address, size));
}

// The WASM program reports from inside a call, so start the next model only after that call has returned.
host.mx.report = (json) => {
  const message = JSON.parse(decoder.decode(json));
  if (message.row) message.row.keep_alive = host.gpu.keep_alive_allowed;
  self.postMessage(message);
  if (message.adapter || message.done) setTimeout(runNext, 0);
};
self.onmessage = async ({ data }) => {
  models = data.models;
  try {
    await host.load(createModule, import.meta.url, { text: new BrowserText() });
    host.wasm._mx_decoder_bench_open();
  } catch (error) {
    self.postMessage({ reason: `The program did not load: ${error.message ?? error}` });
  }
};
// Report an error that a promise did not catch; otherwise the page would wait for ever.
self.addEventListener("unhandledrejection", ({ reason }) => {
  self.postMessage({ reason: `The program stopped: ${reason?.message ?? reason}` });
});
