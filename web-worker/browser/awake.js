// Keeps a GPU awake between a text's rounds: a GPU that rests for tenths of a millisecond lowers its clock, and the way
// to the GPU process and back cools down. For a few milliseconds after an answer it is therefore given a trifle to
// compute every now and then, in the queue of the rounds. So it is when the hub foresees a call (PREFETCH): its answer
// is looked for by a loop that runs already. Only where whoever lends the GPU allows it, and where a core is to spare
// for the loop that asks. A trifle is some 0.1 ms of work for the GPU process, behind which a call that comes would
// stand: one is under way at a time, and how often one is worth its time is found out (pace.js).
export const awake_ms = 4;            // after an answer; the next round of a text comes sooner
export const expected_ms_max = 40;    // for a call that is foreseen
export const expected_in_vain_max = 8;     // foreseen in a row without a call: then none is waited for until one comes
export const trifle_periods_us = [125, 250, 500, 1000];
export const first_trifle_period_us = 250;
const cores_min = 8;

// 32 lanes for some 50 us: a chain of sums that no compiler can shorten.
const wgsl = `
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) thread: u32) {
  var x = out[0];
  for (var i = 0u; i < 16000u; i += 1u) {
    x = fma(x, 0.9999, 0.25);
  }
  if (x == 1.0) {
    out[thread] = x;
  }
}`;

// Whether an adapter, and a machine of so many cores, is one to keep awake.
export function canStayAwake(software, cores = navigator.hardwareConcurrency ?? 1) {
  return !software && cores >= cores_min;
}

export class Trifle {
  constructor(device) {
    this.queue = device.queue;
    this.device = device;
    this.under_way = false;
    this.onTaken = () => { this.under_way = false; };
    const module = device.createShaderModule({ code: wgsl });
    this.pipeline = device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
    const buffer = device.createBuffer({ size: 128, usage: GPUBufferUsage.STORAGE, label: "trifle" });
    const entries = [{ binding: 0, resource: { buffer } }];
    this.group = device.createBindGroup({ layout: this.pipeline.getBindGroupLayout(0), entries });
  }

  // Requires that none is under way.
  compute() {
    this.under_way = true;
    // Answered with the commands behind it when the GPU process has come so far, whether the GPU has or not.
    this.device.pushErrorScope("validation");
    this.device.popErrorScope().then(this.onTaken, this.onTaken);
    const encoder = this.device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, this.group);
    pass.dispatchWorkgroups(1);
    pass.end();
    this.queue.submit([encoder.finish()]);
  }
}
