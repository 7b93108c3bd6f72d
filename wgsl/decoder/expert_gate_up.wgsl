// First half of the FFNs of the experts in a step's routes: intermediate = silu(x · gateᵀ) * (x · upᵀ)
//   @binding(0) tiles         read        u32: pairs of one expert each (group_pairs.wgsl); where a tile is one pair:
//                                         the routes themselves (route.wgsl)
//   @binding(1) codes         read        u32x4: an arena of expert blobs (protocol/tensor_format.h)
//   @binding(2) x             read        f32 [num_rows, hidden_size], rows transposed for INT4 and MXFP4
//   @binding(3) intermediate  read_write  f32 [num_rows * top_k, moe_intermediate_size], rows transposed for INT4
//   @binding(4) place         uniform     ArenaPlace in web-worker/decoder/step_rows.h, 16 bytes
//   @binding(5) words         read        INT4 and MXFP4 only: the same arena, for scales and zeros
// `clamped`: both products have biases, and the values are those of clamped_swiglu() in clamped.wgsl.
// A tile is skipped if its expert resides in another arena.
// 16 lanes share ${half} outputs (${outputs} rows of weights), each lane takes every 16th chunk of ${inputs} inputs.
// A row's sums do not depend on the other rows.
// Dispatch (moe_intermediate_size / outputs_per_group, number of tiles or more, 1).
// CPU reference: expert_gate_up() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include weights.wgsl
//@ include tile.wgsl
const outputs_per_group: u32 = ${group_outputs}u;
const lane_words: u32 = 136u * ${outputs}u;
override hidden_size: u32;
override moe_intermediate_size: u32;
override top_k: u32;
//@ for i in 0..clamped
//@ include ../clamped.wgsl
//@ end
//@ for i in 0..int4
override chunks_per_group_log2: u32;
override gate_up_scale_zero_word: u32;   // word offset in an expert's blob
//@ end

struct ArenaPlace { first_expert: u32, num_experts: u32, expert_words: u32, unused: u32 }

@group(0) @binding(0) var<storage, read> tiles: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> intermediate: array<f32>;
@group(0) @binding(4) var<uniform> place: ArenaPlace;
//@ for i in 0..int4
@group(0) @binding(5) var<storage, read> words: array<u32>;
//@ end

var<workgroup> lane_sums: array<f32, lane_words * tile_rows>;   // per row: weight rows x 8 x 16 partial sums, padded

fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return x[base + quad_at(hidden_size, quad, chunk)];
}

//@ for i in 0..clamped
fn blob_float(word: u32) -> f32 {
  return bitcast<f32>(codes[word / 4u][word % 4u]);
}
//@ end

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
//@ include find_tile.wgsl
  let blob = expert * place.expert_words;
  let lane = thread & 15u;
  let first_output = group.x * outputs_per_group + (thread >> 4u) * ${half}u;
  let chunks = hidden_size / chunk_inputs;
//@ for o in 0..half
  let codes_${o} = blob / 4u + (first_output + ${o}u) * chunks;
//@ end
//@ for w in half..outputs
  let codes_${w} = blob / 4u + (moe_intermediate_size + first_output + ${w}u - ${half}u) * chunks;
//@ end
//@ for i in 0..int4
  let groups = chunks >> chunks_per_group_log2;
//@ for i in 0..affine
//@ for o in 0..half
  let scales_${o} = blob + gate_up_scale_zero_word + (first_output + ${o}u) * groups;
//@ end
//@ for w in half..outputs
  let scales_${w} = blob + gate_up_scale_zero_word + (moe_intermediate_size + first_output + ${w}u - ${half}u) * groups;
//@ end
//@ end
//@ for i in 0..mxfp4
  let scales = (blob + gate_up_scale_zero_word) * 4u;
//@ for o in 0..half
  let scales_${o} = scales + (first_output + ${o}u) * groups;
//@ end
//@ for w in half..outputs
  let scales_${w} = scales + (moe_intermediate_size + first_output + ${w}u - ${half}u) * groups;
//@ end
//@ end
//@ end

//@ for r in 0..rows
  let x_base_${r} = (pair_${r} / top_k) * (hidden_size / 4u);
//@ for w in 0..outputs
  var sum_${r}_${w} = 0.0;
//@ end
//@ end
  for (var chunk = lane; chunk < chunks; chunk += 16u) {
//@ for w in 0..outputs
    var code_${w} = codes[codes_${w} + chunk];
//@ end
//@ for i in 0..int4
//@ for w in 0..outputs
//@ for i in 0..affine
    let scale_zero_${w} = words[scales_${w} + (chunk >> chunks_per_group_log2)];
//@ end
//@ for i in 0..mxfp4
    let scale_zero_${w} = mxfp4_scale(scales_${w} + chunk);
//@ end
//@ end
//@ include ../int4_chunk.wgsl
//@ end
//@ for i in 0..bf16
//@ include bf16_chunk.wgsl
//@ end
//@ for i in 0..f32
//@ include f32_chunk.wgsl
//@ end
  }

  let slot = (thread >> 4u) * 17u + lane;
//@ for r in 0..rows
//@ for w in 0..outputs
  lane_sums[${r}u * lane_words + ${w}u * 136u + slot] = sum_${r}_${w};
//@ end
//@ end
  workgroupBarrier();

  // For each output of a row, a single thread adds the partial sums of the 16 lanes.
  let row = thread / outputs_per_group;
  if (row < num_pairs) {
    let output = thread % outputs_per_group;
    let first_lane = row * lane_words + (output % ${half}u) * 136u + (output / ${half}u) * 17u;
    let first_up = first_lane + ${half}u * 136u;
    var gate = lane_sums[first_lane];
    var up = lane_sums[first_up];
    for (var i = 1u; i < 16u; i += 1u) {
      gate += lane_sums[first_lane + i];
      up += lane_sums[first_up + i];
    }
    let column = group.x * outputs_per_group + output;
//@ for i in 0..int4
    let stored = transposed(column, moe_intermediate_size);
//@ end
//@ for i in 0..wide
    let stored = column;
//@ end
//@ for i in 0..plain
    intermediate[pair_of(group.y, row) * moe_intermediate_size + stored] = silu_times(gate, up);
//@ end
//@ for i in 0..clamped
    let bias = blob + gate_up_bias_word + column;
    intermediate[pair_of(group.y, row) * moe_intermediate_size + stored] =
      clamped_swiglu(gate + blob_float(bias), up + blob_float(bias + moe_intermediate_size));
//@ end
  }
}
