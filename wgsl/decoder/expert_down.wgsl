// Second half of the FFNs of the experts in a step's routes: y of each (row, expert) pair =
// weight · (intermediate · downᵀ)
//   @binding(0) tiles         read        u32: pairs of one expert each (group_pairs.wgsl); where a tile is one pair:
//                                         the routes themselves (route.wgsl)
//   @binding(1) codes         read        u32x4: an arena of expert blobs (protocol/tensor_format.h)
//   @binding(2) intermediate  read        f32 [num_rows * top_k, moe_intermediate_size], rows transposed for INT4
//   @binding(3) y_pairs       read_write  f32 [num_rows * top_k, hidden_size]; add_norm.wgsl adds a row's pairs
//   @binding(4) place         uniform     ArenaPlace in web-worker/decoder/step_rows.h, 16 bytes
//   @binding(5) words         read        INT4 and MXFP4 only: the same arena, for scales and zeros
// `clamped`: the product has a bias.
// A tile is skipped if its expert resides in another arena.
// 8 lanes share ${outputs} outputs, each lane takes every 8th chunk of ${inputs} inputs.
// A row's sums do not depend on the other rows.
// Dispatch (hidden_size / outputs_per_group, number of tiles or more, 1).
// CPU reference: expert_down() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include weights.wgsl
//@ include tile.wgsl
const outputs_per_group: u32 = ${group_outputs}u;
const lane_words: u32 = 9u * outputs_per_group;
override hidden_size: u32;
override moe_intermediate_size: u32;
override down_codes_word: u32;           // word offset in an expert's blob
//@ for i in 0..clamped
//@ include ../clamped.wgsl
//@ end
//@ for i in 0..int4
override chunks_per_group_log2: u32;
override down_scale_zero_word: u32;
//@ end

struct ArenaPlace { first_expert: u32, num_experts: u32, expert_words: u32, unused: u32 }

@group(0) @binding(0) var<storage, read> tiles: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> intermediate: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y_pairs: array<f32>;
@group(0) @binding(4) var<uniform> place: ArenaPlace;
//@ for i in 0..int4
@group(0) @binding(5) var<storage, read> words: array<u32>;
//@ end

var<workgroup> lane_sums: array<f32, lane_words * tile_rows>;   // per row: outputs x 8 partial sums, padded

fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return intermediate[base + quad_at(moe_intermediate_size, quad, chunk)];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
//@ include find_tile.wgsl
  let blob = expert * place.expert_words;
  let lane = thread & 7u;
  let output = group.x * outputs_per_group + (thread >> 3u) * ${outputs}u;
  let chunks = moe_intermediate_size / chunk_inputs;
  let codes_0 = (blob + down_codes_word) / 4u + output * chunks;
//@ for i in 0..int4
  let groups = chunks >> chunks_per_group_log2;
//@ for i in 0..affine
  let scales_0 = blob + down_scale_zero_word + output * groups;
//@ end
//@ for i in 0..mxfp4
  let scales_0 = (blob + down_scale_zero_word) * 4u + output * groups;
//@ end
//@ end

//@ for r in 0..rows
  let x_base_${r} = pair_${r} * (moe_intermediate_size / 4u);
//@ for w in 0..outputs
  var sum_${r}_${w} = 0.0;
//@ end
//@ end
  for (var chunk = lane; chunk < chunks; chunk += 8u) {
//@ for w in 0..outputs
    var code_${w} = codes[codes_0 + ${w}u * chunks + chunk];
//@ end
//@ for i in 0..int4
//@ for w in 0..outputs
//@ for i in 0..affine
    let scale_zero_${w} = words[scales_0 + ${w}u * groups + (chunk >> chunks_per_group_log2)];
//@ end
//@ for i in 0..mxfp4
    let scale_zero_${w} = mxfp4_scale(scales_0 + ${w}u * groups + chunk);
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

//@ for r in 0..rows
//@ for w in 0..outputs
  lane_sums[${r}u * lane_words + ((thread >> 3u) * ${outputs}u + ${w}u) * 9u + lane] = sum_${r}_${w};
//@ end
//@ end
  workgroupBarrier();

  // For each output of a row, a single thread adds the partial sums of the 8 lanes.
  for (var i = thread; i < num_pairs * outputs_per_group; i += 64u) {
    let row = i / outputs_per_group;
    let output = i % outputs_per_group;
    let first_lane = row * lane_words + output * 9u;
    var sum = lane_sums[first_lane];
    for (var other = 1u; other < 8u; other += 1u) {
      sum += lane_sums[first_lane + other];
    }
    let stored = group.x * outputs_per_group + output;
//@ for i in 0..clamped
    let bias = blob + down_bias_word + stored;
    sum += bitcast<f32>(codes[bias / 4u][bias % 4u]);
//@ end
    y_pairs[pair_of(group.y, row) * hidden_size + stored] = weight_of(group.y, row) * sum;
  }
}
