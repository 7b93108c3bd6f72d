// Keeps a GPU awake between a text's rounds: a GPU that rests for tenths of a millisecond lowers its clock, and the way
// to the GPU process and back cools down. For a few milliseconds after an answer it is therefore given a trifle to
// compute every now and then, in the queue of the rounds. So it is when the hub foresees a call (PREFETCH): its answer
// is looked for by a loop that runs already. Only where whoever lends the GPU allows it, and where a core is to spare
// for the loop that asks. Fewer trifles get out of a call's way and let the clock fall, which costs more: with a third
// of them the GPU takes 2 to 3 times as long (bench/results/tab_awake.nvidia-h100.csv).
export const awake_ms = 4;            // after an answer; the next round of a text comes sooner
export const expected_ms_max = 40;    // for a call that is foreseen
export const expected_in_vain_max = 8;     // foreseen in a row without a call: then none is waited for until one comes
export const period_ms = 0.08;        // between trifles
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

export class KeepAliveDispatch {
  constructor(device) {
    this.queue = device.queue;
    this.device = device;
    const module = device.createShaderModule({ code: wgsl });
    this.pipeline = device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
    const buffer = device.createBuffer({ size: 128, usage: GPUBufferUsage.STORAGE, label: "keep alive" });
    const entries = [{ binding: 0, resource: { buffer } }];
    this.group = device.createBindGroup({ layout: this.pipeline.getBindGroupLayout(0), entries });
  }

  compute() {
    const encoder = this.device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, this.group);
    pass.dispatchWorkgroups(1);
    pass.end();
    this.queue.submit([encoder.finish()]);
  }
}
