// The first kernel of the published micro-benchmark (bench/kernel_bench), unoptimised: gate_up = x · [gate; up]ᵀ for
// one expert, one thread per output.
// `clamped`: the products have biases.
//   @binding(0) x        read        f32 [num_tokens, hidden_size]
//   @binding(1) words    read        u32: an arena of expert blobs
//   @binding(2) gate_up  read_write  f32 [num_tokens, 2 * moe_intermediate_size], gate then up
//   @binding(3) params   uniform     ExpertParams in web-worker/gpu/round_layout.h, 32 bytes
// Dispatch (ceil(2 * moe_intermediate_size / 64), num_tokens, 1).
// This kernel is the GPU reference for group_gate_up.wgsl.
// CPU reference: expert_gate_up() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ for i in 0..clamped
//@ include clamped.wgsl
//@ end
//@ for i in 0..mxfp4
//@ include mxfp4.wgsl
//@ end
struct ExpertParams {
  blob_word: u32, num_tokens: u32, hidden_size: u32, moe_intermediate_size: u32, group_size: u32,
  gate_up_scale_zero_word: u32, down_codes_word: u32, down_scale_zero_word: u32
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> words: array<u32>;
@group(0) @binding(2) var<storage, read_write> gate_up: array<f32>;
@group(0) @binding(3) var<uniform> params: ExpertParams;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let outputs = 2u * params.moe_intermediate_size;
  if (id.x >= outputs) {
    return;
  }

  let hidden = params.hidden_size;
  let codes = params.blob_word + id.x * (hidden / 8u);
//@ for i in 0..affine
  let scales = params.blob_word + params.gate_up_scale_zero_word + id.x * (hidden / params.group_size);
//@ end
//@ for i in 0..mxfp4
  let scales = (params.blob_word + params.gate_up_scale_zero_word) * 4u + id.x * (hidden / params.group_size);
//@ end
  let row = id.y * hidden;

  var sum = 0.0;
  for (var g = 0u; g < hidden / params.group_size; g += 1u) {
//@ for i in 0..affine
    let scale_zero = unpack2x16float(words[scales + g]);
//@ end
//@ for i in 0..mxfp4
    let factor = mxfp4_factor(mxfp4_scale(scales + g));
//@ end
    var group_sum = 0.0;
    for (var j = 0u; j < params.group_size / 8u; j += 1u) {
      let word = words[codes + g * (params.group_size / 8u) + j];
      let at = row + g * params.group_size + j * 8u;
      for (var k = 0u; k < 8u; k += 1u) {
//@ for i in 0..affine
        group_sum += (f32((word >> (4u * k)) & 15u) - scale_zero.y) * x[at + k];
//@ end
//@ for i in 0..mxfp4
        group_sum += low_mxfp4(word >> (4u * k)).x * x[at + k];
//@ end
      }
    }
//@ for i in 0..affine
    sum += scale_zero.x * group_sum;
//@ end
//@ for i in 0..mxfp4
    sum += factor * group_sum;
//@ end
  }

//@ for i in 0..clamped
  sum += bitcast<f32>(words[params.blob_word + gate_up_bias_word + id.x]);
//@ end
  gate_up[id.y * outputs + id.x] = sum;
}
