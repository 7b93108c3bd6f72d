// Keeps a GPU awake between the rounds of a text.
//
// Problem: a GPU that rests for tenths of a millisecond lowers its clock, and the path to the GPU process and back
// cools down. Therefore, for a few milliseconds after an answer, a small keep-alive kernel is submitted at a fixed
// period to the same queue as the rounds. The kernels are also submitted when the hub predicts a call (PREFETCH): the
// loop that polls for the answer then runs already when the call arrives. A GPU is kept awake only if the contributor
// allows it and the machine has a core to spare for that loop.
//
// Limit: fewer kernels would delay a call less, but they let the clock fall, which costs more: with a third of them the
// GPU takes 2 to 3 times as long (bench/results/tab_awake.nvidia-h100.csv).

// The GPU is kept awake for this time after an answer; the next round of the same text arrives sooner.
export const awake_ms = 4;
// The GPU is kept awake for at most this time after the hub predicts a call.
export const expected_ms_max = 40;
// After this many predictions in a row without a call, further predictions are ignored until a call arrives.
export const expected_in_vain_max = 8;
export const period_ms = 0.08;        // time between two keep-alive kernels
const cores_min = 8;

// Keeps 32 lanes busy for about 50 us with a chain of sums that no compiler can shorten.
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

// Returns true if this kind of adapter, on a machine with this many cores, is to be kept awake.
export function canStayAwake(software, cores = navigator.hardwareConcurrency ?? 1) {
  return !software && cores >= cores_min;
}

// Submits the kernel that keeps the GPU busy, so that its clock does not fall.
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
