// WebGPU for one worker: integer handles to GPU objects, one encoder per submit, and a readback that sends keep-alive
// writes to the GPU process while it is pending. Plain ES module; the WASM side reaches it through bridge_library.js.

import {
  KeepAliveDispatch, awake_ms, canStayAwake, expected_in_vain_max, expected_ms_max, period_ms as dispatch_period_ms,
} from "./awake.js";
import { KeepAlivePace, periods_us } from "./keep_alive_pace.js";

// The GPU process notices finished work when a command arrives, and otherwise only about every 2 ms. While a readback
// is pending, this module therefore sends 4-byte writes. The time between two writes starts with this value and adapts
// to the machine (keep_alive_pace.js). On a software adapter the period is longer, because the writes take processor
// cores from the rasteriser.
const keep_alive_period_us = { hardware: 20, software: 200 };
// When a readback has been pending for this time, its answer is not expected soon. From then on a timer sends the
// keep-alive writes, instead of a message loop.
const keep_alive_fast_ms = 6;

// The GPU clock times one of this many submissions. Browsers round that clock to 0.1 ms, so a single time is imprecise;
// the mean of many submissions that begin anywhere within the 0.1 ms is right.
const submits_per_time = 16;
const times_kept = 64;

const probe_bytes_max = 256 * 2 ** 20;      // size limit of a buffer by which memory is tried

// The reasons for the loss of a device, with the values of gpu::LossKind in web-worker/gpu/device.h.
const loss = { out_of_memory: 0, other: 1 };

async function findAdapter() {
  if (!self.isSecureContext)
    throw new Error("WebGPU needs a secure page: open this link over https, or on the hub's own machine at"
      + " http://localhost");
  if (!navigator.gpu)
    throw new Error("This browser has no WebGPU. Use a current Chrome, Edge, Firefox or Safari, with hardware"
      + " acceleration switched on");
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter)
    throw new Error("WebGPU found no usable GPU. Switch on hardware acceleration in the browser's settings, or update"
      + " the graphics driver");
  return adapter;
}

// Resolves to true if this worker may use a GPU.
export const hasGpu = () => findAdapter().then(() => true, () => false);

// Finds out whether this browser's GPU could hold a model of `bytes`, before the model is downloaded: allocates buffers
// of that size and frees them. Resolves to "no_gpu", "gpu_too_small" or "".
export async function gpuProblem(bytes) {
  const adapter = await findAdapter().catch(() => null);
  if (!adapter) return "no_gpu";
  const { maxBufferSize } = adapter.limits;
  const device = await adapter.requestDevice({ requiredLimits: { maxBufferSize } }).catch(() => null);
  if (!device) return "no_gpu";
  device.pushErrorScope("out-of-memory");
  const piece = Math.min(maxBufferSize, probe_bytes_max);
  for (let left = bytes; left > 0; left -= piece) {
    device.createBuffer({ size: Math.ceil(Math.min(left, piece) / 4) * 4, usage: GPUBufferUsage.STORAGE });
  }
  const error = await device.popErrorScope().catch((reason) => reason);
  device.destroy();
  return error ? "gpu_too_small" : "";
}

// Resolves to {pipeline, layout}, or to {reason} with the line and column of the error. `named`: the kernel's overrides
// as "name=value name=value ...".
async function compile(device, wgsl, entryPoint, kinds, named) {
  const pairs = named.split(" ").filter(Boolean).map((one) => one.split("="));
  const constants = Object.fromEntries(pairs.map(([name, value]) => [name, Number(value)]));
  device.pushErrorScope("validation");
  const types = ["read-only-storage", "storage", "uniform"];
  const entries = Array.from(kinds, (kind, binding) => (
    { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: types[kind] } }));
  const layout = device.createBindGroupLayout({ entries });
  const module = device.createShaderModule({ code: wgsl });
  let reason = "";
  const compiling = device.createComputePipelineAsync({
    layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }), compute: { module, entryPoint, constants },
  }).catch((error) => {
    reason = error.message;
    return null;
  });
  // The scope ends before anything is awaited: scopes are a stack, and several kernels are compiled at once.
  const checked = device.popErrorScope().catch(() => null);
  const pipeline = await compiling;
  const problem = await checked;
  const { messages } = await module.getCompilationInfo().catch(() => ({ messages: [] }));
  const errors = messages.filter((message) => message.type === "error");
  const where = ({ lineNum, linePos, message }) => `${lineNum}:${linePos}: ${message}`;
  if (errors.length > 0) reason = errors.map(where).join("; ");
  else if (problem) reason = problem.message;
  return pipeline && !problem ? { pipeline, layout } : { reason };
}

const isSoftware = (adapter, info) => adapter.isFallbackAdapter === true || info.isFallbackAdapter === true
  || /swiftshader|llvmpipe|software/i.test(`${info.architecture} ${info.description} ${info.device}`);

// Measures the GPU's own time for a sample of the submissions, if the adapter has a clock.
class Stopwatch {
  constructor(device) {
    this.query_set = device.createQuerySet({ type: "timestamp", count: 2 });
    this.resolved = device.createBuffer({ size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
    this.staging = device.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    this.timestampWrites = { querySet: this.query_set, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
    this.submits = 0;
    this.times_us = [];
    this.busy = false;
    this.onMapped = () => {
      const [begin, end] = new BigUint64Array(this.staging.getMappedRange());
      this.staging.unmap();
      this.busy = false;
      if (end < begin) return;
      this.times_us.push(Number(end - begin) / 1000);
      if (this.times_us.length > times_kept) this.times_us.shift();
    };
    this.onFailed = () => {};        // mapAsync() rejects when the device is lost
  }

  // Returns true if this submission is to be timed; the caller then also calls finish().
  begin() {
    this.submits += 1;
    if (this.busy || this.submits % submits_per_time !== 0) return false;
    this.busy = true;
    return true;
  }
  finish(encoder) {
    encoder.resolveQuerySet(this.query_set, 0, 2, this.resolved, 0);
    encoder.copyBufferToBuffer(this.resolved, 0, this.staging, 0, 16);
  }
  read() { this.staging.mapAsync(GPUMapMode.READ).then(this.onMapped, this.onFailed); }

  get mean_us() {
    if (this.times_us.length === 0) return 0;
    return this.times_us.reduce((sum, one) => sum + one, 0) / this.times_us.length;
  }
}

// A WebGPU device behind integer handles, for the WASM side.
export class Gpu {
  constructor(events) {
    this.events = events;      // onPipeline, onRead, onLost
    this.copies = 0;           // count of copies between the socket and the GPU
    this.promises = 0;
    this.handles = [null];
    this.free = [];
    this.device = null;
    this.pipelines = new Map();      // WGSL text and constants -> promise of {handle, reason}
    this.readbacks = new WeakMap();  // readback buffer -> its pending request and callbacks
    this.pending = 0;
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => this.keepAlive();
    this.keeping_alive = false;
    this.keep_alive_writes = 0;
    this.keep_alive_allowed = true;  // false if a bench measures without keep-alive writes
    this.may_stay_awake = false;     // true if the contributor's settings permit to keep the GPU awake
    this.can_stay_awake = false;
    this.keep_alive_dispatch = null; // created when it is first used
    this.keep_alive_dispatches = 0;
    this.awake_until = 0;
    this.expected = 0;               // count of predicted calls since the newest call arrived
    this.word = new Uint32Array(1);
  }

  // Returns the size of all buffers on the device.
  get bytes() {
    return this.handles.reduce((sum, object) => sum + (object instanceof GPUBuffer ? object.size : 0), 0);
  }

  add(object) {
    const handle = this.free.pop() ?? this.handles.length;
    this.handles[handle] = object;
    return handle;
  }
  remove(handle) {
    const object = this.handles[handle];
    if (handle > 0 && object) {
      this.handles[handle] = null;
      this.free.push(handle);
    }
    return object;
  }

  // Resolves to the adapter description that the C++ side needs; rejects with a sentence that says what the user can
  // do.
  async open() {
    const adapter = await findAdapter();
    const wanted = ["maxStorageBufferBindingSize", "maxBufferSize", "maxStorageBuffersPerShaderStage"];
    const requiredLimits = Object.fromEntries(wanted.map((name) => [name, adapter.limits[name]]));
    const has_clock = adapter.features.has("timestamp-query");
    const requiredFeatures = has_clock ? ["timestamp-query"] : [];
    const device = await adapter.requestDevice({ requiredLimits, requiredFeatures });
    this.device = device;
    this.stopwatch = has_clock ? new Stopwatch(device) : null;
    device.lost.then((info) => this.lose(device, loss.other, info.message || String(info.reason)));
    // A failed allocation or an invalid command throws no exception: the GPU skips the work, and a readback would
    // return old bytes. The browser reports errors in command order, so it reports the error before that readback ends.
    // From then on no result of this device is used.
    device.addEventListener("uncapturederror", ({ error }) => {
      const no_memory = error instanceof GPUOutOfMemoryError;
      this.lose(device, no_memory ? loss.out_of_memory : loss.other,
        `${no_memory ? "out of memory" : "error"}: ${error.message}`);
      device.destroy();
    });
    this.scratch = device.createBuffer({ size: 4, usage: GPUBufferUsage.COPY_DST, label: "keep alive" });

    const info = adapter.info ?? {};
    const software = isSoftware(adapter, info);
    this.pace = new KeepAlivePace(software ? keep_alive_period_us.software : keep_alive_period_us.hardware);
    this.period_ms = this.pace.period_us / 1000;
    this.can_stay_awake = canStayAwake(software);
    this.keep_alive_dispatch = null;
    return {
      vendor: info.vendor || "unknown", architecture: info.architecture ?? "", description: info.description ?? "",
      software,
      has_f16: adapter.features.has("shader-f16"), has_subgroups: adapter.features.has("subgroups"),
      max_buffer_bytes: device.limits.maxBufferSize, max_binding_bytes: device.limits.maxStorageBufferBindingSize,
      max_workgroup_invocations: device.limits.maxComputeInvocationsPerWorkgroup,
      max_workgroups_per_dimension: device.limits.maxComputeWorkgroupsPerDimension,
    };
  }

  lose(device, kind, reason) {
    if (this.device !== device) return;
    this.device = null;
    this.events.onLost(kind, reason);
  }
  close() {
    const device = this.device;
    this.device = null;
    this.pending = 0;
    this.awake_until = 0;
    this.handles = [null];
    this.free = [];
    this.pipelines.clear();
    device?.destroy();
  }

  // `usage` has the values of gpu::BufferUsage: 0 storage, 1 uniform, 2 readback.
  createBuffer(size, usage, label) {
    if (!this.device) return 0;
    const usages = [
      GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC,
      GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
      GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    ];
    try {
      return this.add(this.device.createBuffer({ size, usage: usages[usage], label }));
    } catch (error) {
      console.error("gpu: buffer", error.message);
      return 0;
    }
  }
  destroyBuffer(handle) { this.remove(handle)?.destroy(); }
  writeBuffer(handle, offset, heap, address, size) {
    const buffer = this.handles[handle];
    if (!this.device || !buffer) return;
    this.copies += 1;
    this.device.queue.writeBuffer(buffer, offset, heap, address, size);
  }

  async createPipeline(wgsl, entryPoint, kinds, named, ticket) {
    const device = this.device;
    const key = `${named}\n${wgsl}`;
    // A pipeline with the same text and constants is reused, also one that is being compiled. onPipeline() is never
    // called inside this call: a caller that requests the next pipeline in the callback would otherwise nest one call
    // deeper for each pipeline that exists already.
    if (device && !this.pipelines.has(key)) {
      this.pipelines.set(key, compile(device, wgsl, entryPoint, kinds, named).then((made) => (
        { handle: made.pipeline && this.device === device ? this.add(made) : 0, reason: made.reason })));
    }
    const making = this.pipelines.get(key);
    const { handle = 0, reason = "the GPU is gone" } = await making ?? {};
    if (!handle && this.pipelines.get(key) === making) this.pipelines.delete(key);
    const gone = !device || this.device !== device;
    this.events.onPipeline(ticket, handle || (gone ? -1 : 0), handle ? "" : reason);
  }

  createBindGroup(pipeline, doubles, first, count) {
    const made = this.handles[pipeline];
    if (!this.device || !made) return 0;
    const entries = [];
    for (let binding = 0; binding < count; binding += 1) {
      const at = first + 3 * binding;
      const buffer = this.handles[doubles[at]];
      if (!buffer) return 0;
      const resource = { buffer, offset: doubles[at + 1] };
      if (doubles[at + 2] > 0) resource.size = doubles[at + 2];
      entries.push({ binding, resource });
    }
    return this.add(this.device.createBindGroup({ layout: made.layout, entries }));
  }
  destroyBindGroup(handle) { this.remove(handle); }

  submit(words, first, count) {
    if (!this.device) return;
    const encoder = this.device.createCommandEncoder();
    const timed = words[first] === 0 && this.stopwatch?.begin() === true;
    let pass = null;
    let passes = 0;
    for (let at = first, end = first + 8 * count; at < end; at += 8) {
      if (words[at] === 0) {
        if (!pass) {
          const has_times = timed && passes === 0;
          pass = encoder.beginComputePass(has_times ? { timestampWrites: this.stopwatch.timestampWrites } : undefined);
          passes += 1;
        }
        pass.setPipeline(this.handles[words[at + 1]].pipeline);
        pass.setBindGroup(0, this.handles[words[at + 2]]);
        pass.dispatchWorkgroups(words[at + 3], words[at + 4], words[at + 5]);
      } else {
        pass?.end();
        pass = null;
        encoder.copyBufferToBuffer(this.handles[words[at + 1]], words[at + 3],
          this.handles[words[at + 2]], words[at + 4], words[at + 5]);
      }
    }
    pass?.end();
    if (timed) this.stopwatch.finish(encoder);
    this.device.queue.submit([encoder.finish()]);
    if (timed) this.stopwatch.read();
  }

  // Each buffer has at most one pending readback, so the object with its callbacks is created once per buffer.
  readback(handle) {
    const buffer = this.handles[handle];
    const device = this.device;
    if (!device || !buffer) return null;
    const known = this.readbacks.get(buffer);
    if (known) return known;

    const made = { buffer, size: 0, ticket: 0, rung: 0, since: 0 };
    const settle = () => {
      if (this.device !== device) return;
      this.pending -= 1;
      this.stayAwake(awake_ms);
    };
    made.onMapped = () => {
      settle();
      this.pace.took(made.rung, performance.now() - made.since);
      // Copy before unmap() invalidates the range, straight to the address from which the WASM reads.
      this.copies += 1;
      this.events.takeRead(new Uint8Array(buffer.getMappedRange(0, made.size)));
      buffer.unmap();
      this.events.onRead(made.ticket, made.size);
    };
    made.onFailed = () => {
      settle();
      this.events.onRead(made.ticket, 0);
    };
    this.readbacks.set(buffer, made);
    return made;
  }

  // Keeps the GPU awake for `for_ms` from now on. Returns false if the settings or the machine do not allow it.
  stayAwake(for_ms) {
    if (!this.may_stay_awake || !this.can_stay_awake) return false;
    this.keep_alive_dispatch ??= new KeepAliveDispatch(this.device);
    this.awake_until = Math.max(this.awake_until, performance.now() + for_ms);
    return true;
  }

  // The hub predicts a call: start the loop that polls for the call's answer, and wake the GPU. A prediction keeps the
  // loop and the GPU awake only for a short time. After expected_in_vain_max predictions in a row without a call,
  // further predictions are ignored.
  expectWork(within_ms) {
    if (!this.device || !this.keep_alive_allowed || this.expected >= expected_in_vain_max) return;
    if (!this.stayAwake(Math.min(within_ms, expected_ms_max))) return;
    this.expected += 1;
    if (!this.keeping_alive) this.startKeepAlive();
  }

  readBuffer(handle, size, ticket) {
    const readback = this.readback(handle);
    if (!readback) {
      queueMicrotask(() => this.events.onRead(ticket, 0));
      return;
    }
    readback.size = size;
    readback.ticket = ticket;
    readback.rung = this.pace.next();
    readback.since = performance.now();
    this.period_ms = periods_us[readback.rung] / 1000;
    this.pending += 1;
    this.expected = 0;
    this.promises += 1;
    readback.buffer.mapAsync(GPUMapMode.READ, 0, size).then(readback.onMapped, readback.onFailed);
    this.startKeepAlive();
  }

  startKeepAlive() {
    this.wait_began = performance.now();
    if (this.keeping_alive || !this.keep_alive_allowed) return;
    this.keeping_alive = true;
    this.last_keep_alive = this.wait_began;
    this.channel.port2.postMessage(0);
  }
  keepAlive() {
    const now = performance.now();
    const waits = this.pending > 0;
    if (!this.device || (!waits && now >= this.awake_until)) {
      this.keeping_alive = false;
      return;
    }
    if (now - this.last_keep_alive >= (waits ? this.period_ms : dispatch_period_ms)) {
      this.last_keep_alive = now;
      if (waits) {
        this.keep_alive_writes += 1;
        this.device.queue.writeBuffer(this.scratch, 0, this.word);
      } else {
        this.keep_alive_dispatches += 1;
        this.keep_alive_dispatch.compute();
      }
    }
    if (!waits || now - this.wait_began < keep_alive_fast_ms) this.channel.port2.postMessage(0);
    else setTimeout(() => this.keepAlive(), 1);
  }
}
