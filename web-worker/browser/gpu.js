// WebGPU for one worker: integer handles to GPU objects, one encoder per submit, readback that pokes the GPU process
// while it waits. Plain ES module; the WASM side sees it through bridge_library.js.

import { PokePace, periods_us } from "./poke.js";

// The GPU process notices finished work when a command arrives, and else about every 2 ms. While a readback is
// pending, a 4-byte write is sent at a period that begins with this one and adapts to the machine (poke.js); on a
// software adapter less often, since it takes the cores from the rasteriser.
const poke_period_us = { hardware: 20, software: 200 };
// After this long the answer is not near: the pokes come from a timer instead of a message loop.
const poke_fast_ms = 6;

// As gpu::LossKind in web-worker/gpu/device.h.
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

// Resolves to {pipeline, layout}, or to a reason that names line and column. `named`: "name=value name=value ...", the
// kernel's overrides.
async function compile(device, wgsl, entryPoint, kinds, named) {
  const pairs = named.split(" ").filter(Boolean).map((one) => one.split("="));
  const constants = Object.fromEntries(pairs.map(([name, value]) => [name, Number(value)]));
  device.pushErrorScope("validation");
  const types = ["read-only-storage", "storage", "uniform"];
  const entries = Array.from(kinds, (kind, binding) => (
    { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: types[kind] } }));
  const layout = device.createBindGroupLayout({ entries });
  const module = device.createShaderModule({ code: wgsl });
  let pipeline = null;
  let reason = "";
  try {
    pipeline = await device.createComputePipelineAsync({
      layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }), compute: { module, entryPoint, constants },
    });
  } catch (error) {
    reason = error.message;
  }

  const problem = await device.popErrorScope().catch(() => null);
  const { messages } = await module.getCompilationInfo().catch(() => ({ messages: [] }));
  const errors = messages.filter((message) => message.type === "error");
  const where = ({ lineNum, linePos, message }) => `${lineNum}:${linePos}: ${message}`;
  if (errors.length > 0) reason = errors.map(where).join("; ");
  else if (problem) reason = problem.message;
  return pipeline && !problem ? { pipeline, layout } : { reason };
}

const isSoftware = (adapter, info) => adapter.isFallbackAdapter === true || info.isFallbackAdapter === true
  || /swiftshader|llvmpipe|software/i.test(`${info.architecture} ${info.description} ${info.device}`);

export class Gpu {
  constructor(events) {
    this.events = events;      // onPipeline, onRead, onLost
    this.handles = [null];
    this.free = [];
    this.device = null;
    this.pipelines = new Map();      // WGSL text and constants -> handle
    this.pending = 0;
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => this.poke();
    this.poking = false;
    this.pokes = 0;
    this.word = new Uint32Array(1);
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

  // Resolves to what the C++ side knows of the adapter; rejects with a sentence that says what to do.
  async open() {
    const adapter = await findAdapter();
    const wanted = ["maxStorageBufferBindingSize", "maxBufferSize", "maxStorageBuffersPerShaderStage"];
    const requiredLimits = Object.fromEntries(wanted.map((name) => [name, adapter.limits[name]]));
    const device = await adapter.requestDevice({ requiredLimits });
    this.device = device;
    device.lost.then((info) => this.lose(device, loss.other, info.message || String(info.reason)));
    // A failed allocation or an invalid command throws nothing: what was to be computed is not, and a readback gives
    // old bytes. Errors come in the order of the commands, so before that readback: nothing of this device is believed
    // from here on.
    device.addEventListener("uncapturederror", ({ error }) => {
      const no_memory = error instanceof GPUOutOfMemoryError;
      this.lose(device, no_memory ? loss.out_of_memory : loss.other,
        `${no_memory ? "out of memory" : "error"}: ${error.message}`);
      device.destroy();
    });
    this.scratch = device.createBuffer({ size: 4, usage: GPUBufferUsage.COPY_DST, label: "poke" });

    const info = adapter.info ?? {};
    const software = isSoftware(adapter, info);
    this.pace = new PokePace(software ? poke_period_us.software : poke_period_us.hardware);
    this.period_ms = this.pace.period_us / 1000;
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
    this.handles = [null];
    this.free = [];
    this.pipelines.clear();
    device?.destroy();
  }

  // usage: 0 storage, 1 uniform, 2 readback, as gpu::BufferUsage.
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
    if (this.device && buffer) this.device.queue.writeBuffer(buffer, offset, heap, address, size);
  }

  async createPipeline(wgsl, entryPoint, kinds, named, ticket) {
    const device = this.device;
    let reason = "the GPU is gone";
    const key = `${named}\n${wgsl}`;
    let handle = this.pipelines.get(key) ?? 0;       // made before: nothing is compiled anew
    if (device && !handle) {
      const made = await compile(device, wgsl, entryPoint, kinds, named);
      reason = made.reason ?? reason;
      if (made.pipeline && this.device === device) {
        handle = this.add(made);
        this.pipelines.set(key, handle);
      }
    }
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
    let pass = null;
    for (let at = first, end = first + 8 * count; at < end; at += 8) {
      if (words[at] === 0) {
        pass ??= encoder.beginComputePass();
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
    this.device.queue.submit([encoder.finish()]);
  }

  async readBuffer(handle, size, ticket) {
    const buffer = this.handles[handle];
    const device = this.device;
    if (!device || !buffer) {
      queueMicrotask(() => this.events.onRead(ticket, null));
      return;
    }

    this.pending += 1;
    const rung = this.pace.next();
    this.period_ms = periods_us[rung] / 1000;
    this.startPoking();
    const since = performance.now();

    let ok = true;
    try {
      await buffer.mapAsync(GPUMapMode.READ, 0, size);
    } catch {
      ok = false;
    }
    if (this.device === device) this.pending -= 1;
    if (ok) this.pace.took(rung, performance.now() - since);
    if (!ok) {
      this.events.onRead(ticket, null);
      return;
    }

    // Copied before the unmap. The callback stands outside any try: what it throws is no failed map.
    const bytes = new Uint8Array(buffer.getMappedRange(0, size)).slice();
    buffer.unmap();
    this.events.onRead(ticket, bytes);
  }

  startPoking() {
    this.wait_began = performance.now();
    if (this.poking) return;
    this.poking = true;
    this.last_poke = this.wait_began;
    this.channel.port2.postMessage(0);
  }
  poke() {
    if (this.pending === 0 || !this.device) {
      this.poking = false;
      return;
    }
    const now = performance.now();
    if (now - this.last_poke >= this.period_ms) {
      this.last_poke = now;
      this.pokes += 1;
      this.device.queue.writeBuffer(this.scratch, 0, this.word);
    }
    if (now - this.wait_began < poke_fast_ms) this.channel.port2.postMessage(0);
    else setTimeout(() => this.poke(), 1);
  }
}
