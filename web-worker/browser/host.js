// The services that a page's worker gives to its WASM program: bytes in the heap for the time of a call, and a GPU.
// `mx` becomes Module.mx, which bridge_library.js calls; a worker that needs more (a socket, blobs, timers) adds it
// to `mx`.
import { Gpu } from "./gpu.js";

const encoder = new TextEncoder();
const decoder = new TextDecoder();

// Loads a WASM program and connects it to the GPU and the page's worker.
export class Host {
  constructor() {
    this.wasm = null;
    this.mallocs = 0;
    this.copies = 0;                           // copies into and out of the WASM heap; gpu.js counts its own copies
    this.gpu = new Gpu({
      onPipeline: (ticket, handle, reason) => {
        this.withText(reason, (address, size) => this.wasm._mx_on_pipeline(ticket, handle, address, size));
      },
      takeRead: (bytes) => this.mx.copyIn(bytes, this.wasm._mx_read_room(bytes.length)),
      onRead: (ticket, size) => this.wasm._mx_on_read(ticket, size),
      onLost: (kind, reason) => {
        this.withText(reason, (address, size) => this.wasm._mx_on_lost(kind, address, size));
      },
    });

    const gpu = this.gpu;
    this.mx = {
      copyIn: null,                            // set by mx_bind_heap()
      createDevice: (ticket) => {
        const answer = (text, ok) => {
          this.withText(text, (address, size) => this.wasm._mx_on_device(ticket, address, size, ok));
        };
        gpu.open().then((adapter) => answer(JSON.stringify(adapter), 1), (error) => answer(error.message, 0));
      },
      destroyDevice: () => gpu.close(),
      createBuffer: (size, usage, label) => gpu.createBuffer(size, usage, decoder.decode(label)),
      destroyBuffer: (buffer) => gpu.destroyBuffer(buffer),
      writeBuffer: (buffer, offset, heap, address, size) => gpu.writeBuffer(buffer, offset, heap, address, size),
      createPipeline: (wgsl, entry, kinds, constants, ticket) => {
        gpu.createPipeline(decoder.decode(wgsl), decoder.decode(entry), kinds, decoder.decode(constants), ticket);
      },
      createBindGroup: (pipeline, doubles, first, count) => gpu.createBindGroup(pipeline, doubles, first, count),
      destroyBindGroup: (group) => gpu.destroyBindGroup(group),
      submit: (words, first, count) => gpu.submit(words, first, count),
      expectWork: (within_ms) => gpu.expectWork(within_ms),
      gpuUs: () => gpu.stopwatch?.mean_us ?? 0,
      readBuffer: (buffer, size, ticket) => { gpu.readBuffer(buffer, size, ticket); },
    };
  }

  // Loads the WASM program that `createModule` finds next to `url`, and resolves when its functions can be called.
  // `more`: further properties of the module that the program needs from JavaScript.
  async load(createModule, url, more = {}) {
    this.wasm = await createModule({ mx: this.mx, locateFile: (name) => new URL(name, url).href, ...more });
    this.wasm._mx_init();
  }

  // Passes a frame from the hub to mx_on_frame(); the WASM heap has a separate buffer for frames.
  giveFrame(bytes) {
    this.copies += 1;
    this.mx.copyIn(bytes, this.wasm._mx_frame_room(bytes.length));
    this.wasm._mx_on_frame(bytes.length);
  }

  // Copies `bytes` into the WASM heap, calls f(address, size) and frees the copy.
  withBytes(bytes, f) {
    this.mallocs += 1;
    this.copies += 1;
    const address = this.wasm._malloc(Math.max(1, bytes.length)) >>> 0;
    if (!address) throw new Error("out of memory in the worker");
    this.mx.copyIn(bytes, address);
    f(address, bytes.length);
    this.wasm._free(address);
  }
  withText(text, f) { this.withBytes(encoder.encode(text), f); }
}
