// First half of the experts' FFNs of a grouped round, for experts of one arena that have one row each:
// intermediate = silu(x · gateᵀ) * (x · upᵀ)
//   @binding(0) upload        read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) codes         read        u32x4: an arena of expert blobs, for the codes
//   @binding(2) words         read        u32: the same arena, for scales and zeros (2×f16 a word: scale, zero)
//   @binding(3) intermediate  read_write  f32 [num_pairs, moe_intermediate_size], rows transposed
//   @binding(4) place         uniform     arena, list of tiles: GroupPlace in web-worker/gpu/round_layout.h, 16 bytes
// `clamped`: both products have biases, and the values are those of clamped_swiglu() in clamped.wgsl.
// x is read in wire form. A workgroup loads it into workgroup memory, 32 chunks at a time, while the reads of the first
// weights are in flight. 16 lanes share two outputs (four rows of weights), each lane takes every 16th chunk.
// The sums and their order are those of group_gate_up.wgsl: a batched answer is bit-equal to a single one.
// Dispatch (moe_intermediate_size / 16, number of tiles, 1).
// CPU reference: expert_gate_up() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include round_header.wgsl
//@ include int4.wgsl
//@ for i in 0..clamped
//@ include clamped.wgsl
//@ end
//@ include wire_rows.wgsl
const outputs_per_group: u32 = 16u;
const slab_chunks: u32 = 32u;

struct GroupPlace { first_tile_word: u32, unused_0: u32, unused_1: u32, unused_2: u32 }

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read_write> intermediate: array<f32>;
@group(0) @binding(4) var<uniform> place: GroupPlace;

var<workgroup> slab: array<vec4<f32>, 264>;   // x: 8 quads of each of 32 chunks, padded
var<workgroup> lane_sums: array<f32, 544>;    // 4 rows of weights x 8 x 16 partial sums, padded

//@ include wire_x.wgsl
fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return slab[quad * (slab_chunks + 1u) + chunk - base];
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  // Words of a tile: blob's first word in the arena, index of the pair, 1, the pair's row of x.
  let tile = upload[place.first_tile_word] + group.y * 4u;
  let blob = upload[tile];
  let pair = upload[tile + 1u];
  let row = upload[tile + 3u];

  let lane = thread & 15u;
  let output = group.x * outputs_per_group + (thread >> 4u) * 2u;
//@ include gate_up_weights.wgsl

//@ for w in 0..4
  var sum_0_${w} = 0.0;
//@ end
  for (var first = 0u; first < chunks; first += slab_chunks) {
//@ for j in 0..2
    let chunk_${j} = first + lane + ${j}u * 16u;
    let at_${j} = min(chunk_${j}, chunks - 1u);
//@ for w in 0..4
    let code_${j}_${w} = codes[codes_${w} + at_${j}];
//@ for i in 0..affine
    let scale_zero_${j}_${w} = words[scales_${w} + (at_${j} >> chunks_per_group_log2)];
//@ end
//@ for i in 0..mxfp4
    let scale_zero_${j}_${w} = mxfp4_scale(scales_${w} + at_${j});
//@ end
//@ end
//@ end

    if (first > 0u) {
      workgroupBarrier();
    }
    for (var quad = thread; quad < min(slab_chunks, chunks - first) * 8u; quad += 128u) {
      slab[(quad & 7u) * (slab_chunks + 1u) + (quad >> 3u)] = wire_quad(row, first * 8u + quad);
    }
    workgroupBarrier();

    let x_base_0 = first;
//@ for j in 0..2
    if (chunk_${j} < chunks) {
      let chunk = chunk_${j};
//@ for w in 0..4
      var code_${w} = code_${j}_${w};
      let scale_zero_${w} = scale_zero_${j}_${w};
//@ end
//@ include int4_chunk.wgsl
    }
//@ end
  }

  let slot = (thread >> 4u) * 17u + lane;
//@ for w in 0..4
  lane_sums[${w}u * 136u + slot] = sum_0_${w};
//@ end
  workgroupBarrier();

  // For each output, a single thread adds the partial sums of the 16 lanes.
  if (thread < outputs_per_group) {
    let first_lane = (thread & 1u) * 136u + (thread >> 1u) * 17u;
    var gate = lane_sums[first_lane];
    var up = lane_sums[first_lane + 272u];
//@ for i in 1..16
    gate += lane_sums[first_lane + ${i}u];
    up += lane_sums[first_lane + 272u + ${i}u];
//@ end
    let stored = transposed(group.x * outputs_per_group + thread, moe_intermediate_size);
//@ for i in 0..plain
    intermediate[pair * moe_intermediate_size + stored] = silu_times(gate, up);
//@ end
//@ for i in 0..clamped
    let bias = blob + gate_up_bias_word + group.x * outputs_per_group + thread;
    intermediate[pair * moe_intermediate_size + stored] =
      clamped_swiglu(gate + bitcast<f32>(words[bias]), up + bitcast<f32>(words[bias + moe_intermediate_size]));
//@ end
  }
}
