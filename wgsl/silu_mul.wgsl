// The second kernel of the published micro-benchmark (bench/kernel_bench): intermediate = silu(gate) * up.
// `clamped`: the values are those of clamped_swiglu() in clamped.wgsl.
//   @binding(0) gate_up       read        f32 [num_tokens, 2 * moe_intermediate_size], gate then up
//   @binding(1) intermediate  read_write  f32 [num_tokens, moe_intermediate_size]
//   @binding(2) params        uniform     ExpertParams, 32 bytes
// Dispatch (ceil(moe_intermediate_size / 64), num_tokens, 1).
//@ for i in 0..clamped
//@ include clamped.wgsl
//@ end
struct ExpertParams {
  blob_word: u32, num_tokens: u32, hidden_size: u32, moe_intermediate_size: u32, group_size: u32,
  gate_up_scale_zero_word: u32, down_codes_word: u32, down_scale_zero_word: u32
}

@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read_write> intermediate: array<f32>;
@group(0) @binding(2) var<uniform> params: ExpertParams;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let size = params.moe_intermediate_size;
  if (id.x >= size) {
    return;
  }
  let gate = gate_up[id.y * 2u * size + id.x];
  let up = gate_up[id.y * 2u * size + size + id.x];
//@ for i in 0..plain
  intermediate[id.y * size + id.x] = gate / (1.0 + exp(-gate)) * up;
//@ end
//@ for i in 0..clamped
  intermediate[id.y * size + id.x] = clamped_swiglu(gate, up);
//@ end
}
