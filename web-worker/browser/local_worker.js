// The worker behind "this device" in the chat page, for all tabs of a browser profile: a SharedWorker where that goes
// on while a page is away (static/js/chat/model_link.js), else a Dedicated Worker of one of the tabs.
// Messages in:  for a Dedicated Worker {type: "CONNECT"} with a port. Over each port: see model_desk.js.
// Messages out: of a Dedicated Worker {unused: true}: no tab uses the model any more. Over the port of a SharedWorker
//               first {type: "HELLO", payload: {can_compute, has_webgpu}}.
import { FileStore } from "./file_store.js";
import { LentStore } from "./lent_store.js";
import { LocalModel } from "./local_model.js";
import { ModelDesk } from "./model_desk.js";
import { mayStoreFiles, openChannel } from "./storage.js";

const is_shared = "onconnect" in self;
const desk = new ModelDesk({
  makeModel: (how) => new LocalModel({
    ...how, openStore: () => (is_shared ? LentStore.open(() => desk.lentStore()) : FileStore.open()),
  }),
  is_warm: is_shared,
  onUnused: () => { if (!is_shared) self.postMessage({ unused: true }); },
});

if (is_shared) {
  const can_compute = Boolean(self.FileReaderSync && mayStoreFiles()), has_webgpu = Boolean(self.navigator.gpu);
  self.onconnect = ({ ports: [port] }) => {
    desk.connect(port);
    port.postMessage({ type: "HELLO", payload: { can_compute, has_webgpu } });
  };
} else self.onmessage = ({ ports: [port] }) => desk.connect(port);

// When all data is deleted (js/forget.js), keys and values leave the GPU, too, even if no tab uses the model now.
openChannel("moex-forget", () => desk.endModel());

// Report an error that nothing caught; otherwise the tabs would wait for ever. A page hears of an error of its
// Dedicated Worker, but not of one of a SharedWorker.
self.addEventListener("unhandledrejection", ({ reason }) => desk.model?.fail(reason ?? new Error("it stopped")));
if (is_shared)
  self.addEventListener("error", ({ error, message }) => desk.model?.fail(error ?? new Error(message)));
