// The Dedicated Worker of /bench.html. Messages in: {shapes: [name, ...]}. Messages out: {adapter}, {row}, {done:
// shape}, {finished: true} after the last shape, or {reason} when the bench cannot continue.
import createModule from "./moex-worker.js";
import { Host } from "./host.js";

const host = new Host();
const decoder = new TextDecoder();
let shapes = [];
let ran = 0;

function runNext() {
  if (ran === shapes.length) {
    self.postMessage({ finished: true });
    return;
  }
  const shape = shapes[ran];
  ran += 1;
  host.withText(shape, (address, size) => host.wasm._mx_bench_run(address, size, ran === 1 ? 1 : 0));
}

// The WASM program reports from inside a call, so start the next shape only after that call has returned.
host.mx.report = (json) => {
  const message = JSON.parse(decoder.decode(json));
  self.postMessage(message);
  if (message.adapter || message.done) setTimeout(runNext, 0);
};
self.onmessage = async ({ data }) => {
  shapes = data.shapes;
  try {
    await host.load(createModule, import.meta.url);
    host.wasm._mx_bench_open();
  } catch (error) {
    self.postMessage({ reason: `The program did not load: ${error.message ?? error}` });
  }
};
// Report an error that a promise did not catch; otherwise the page would wait for ever.
self.addEventListener("unhandledrejection", ({ reason }) => {
  self.postMessage({ reason: `The program stopped: ${reason?.message ?? reason}` });
});
