// Runs the kernel cases in a Dedicated Worker, as a contributor's tab would: posts the adapter, then one message per
// case, then {done}.
import createModule from "./moex-kernels.js";
import { Host } from "./wasm/host.js";

const host = new Host();
const decoder = new TextDecoder();
let reported = null;
host.mx.report = (json) => reported(JSON.parse(decoder.decode(json)));
// The promise resolves after the callback has returned, because the case that reported may be destroyed only then.
const ask = (start) => new Promise((resolve) => {
  reported = resolve;
  start();
});

try {
  await host.load(createModule, import.meta.url);
  const adapter = await ask(() => host.wasm._mx_open());
  self.postMessage({ adapter });
  for (let index = 0; index < (adapter.num_cases ?? 0); index += 1)
    self.postMessage({ result: await ask(() => host.wasm._mx_run_case(index)) });
  self.postMessage({ done: true });
} catch (error) {
  self.postMessage({ failed: String(error.stack ?? error) });
}
