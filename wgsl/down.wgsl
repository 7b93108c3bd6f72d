// The third kernel of the published micro-benchmark (bench/kernel_bench), unoptimised: y = intermediate · downᵀ for one
// expert, one thread per output. The caller applies the gates.
// `clamped`: the product has a bias.
//   @binding(0) intermediate  read        f32 [num_tokens, moe_intermediate_size]
//   @binding(1) words         read        u32: an arena of expert blobs
//   @binding(2) y             read_write  f32 [num_tokens, hidden_size]
//   @binding(3) params        uniform     ExpertParams, 32 bytes
// Dispatch (ceil(hidden_size / 64), num_tokens, 1).
// This kernel is the GPU reference for group_down.wgsl.
// CPU reference: expert_down() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
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

@group(0) @binding(0) var<storage, read> intermediate: array<f32>;
@group(0) @binding(1) var<storage, read> words: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> params: ExpertParams;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.hidden_size) {
    return;
  }
  let inputs = params.moe_intermediate_size;
  let codes = params.blob_word + params.down_codes_word + id.x * (inputs / 8u);
//@ for i in 0..affine
  let scales = params.blob_word + params.down_scale_zero_word + id.x * (inputs / params.group_size);
//@ end
//@ for i in 0..mxfp4
  let scales = (params.blob_word + params.down_scale_zero_word) * 4u + id.x * (inputs / params.group_size);
//@ end
  let row = id.y * inputs;

  var sum = 0.0;
  for (var g = 0u; g < inputs / params.group_size; g += 1u) {
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
        group_sum += (f32((word >> (4u * k)) & 15u) - scale_zero.y) * intermediate[at + k];
//@ end
//@ for i in 0..mxfp4
        group_sum += low_mxfp4(word >> (4u * k)).x * intermediate[at + k];
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
  sum += bitcast<f32>(words[params.blob_word + down_bias_word + id.x]);
//@ end
  y[id.y * params.hidden_size + id.x] = sum;
}
