// First half of the experts' FFNs of a grouped round, for experts of one arena that have several rows each:
// intermediate = silu(x · gateᵀ) * (x · upᵀ)
//   @binding(0) upload        read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) codes         read        u32x4: an arena of expert blobs, for the codes
//   @binding(2) words         read        u32: the same arena, for scales and zeros (2×f16 a word: scale, zero)
//   @binding(3) x             read        f32 [num_tokens, hidden_size], rows transposed (unpack_rows.wgsl)
//   @binding(4) intermediate  read_write  f32 [num_pairs, moe_intermediate_size], rows transposed
//   @binding(5) place         uniform     arena, list of tiles: GroupPlace in web-worker/gpu/round_layout.h, 16 bytes
// A tile is up to ${rows} rows of one expert. 16 lanes share two outputs (four rows of weights) of a tile, each lane
// takes every 16th chunk of 32 inputs. A row's sums do not depend on the number of rows.
// Dispatch (moe_intermediate_size / 16, number of tiles, 1).
// Twin: expert_gate_up() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include round_header.wgsl
//@ include int4.wgsl
const outputs_per_group: u32 = 16u;
const tile_rows: u32 = ${rows}u;

struct GroupPlace { first_tile_word: u32, unused_0: u32, unused_1: u32, unused_2: u32 }

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> intermediate: array<f32>;
@group(0) @binding(5) var<uniform> place: GroupPlace;

var<workgroup> lane_sums: array<f32, 272u * ${rows}u>;   // of two outputs, 8 x 16 lanes, and padding

fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return x[base + quad * (hidden_size / 32u) + chunk];
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  // tile: blob's first word in the arena, first pair, number of pairs, row of the first pair
  let tile = upload[place.first_tile_word] + group.y * 4u;
  let blob = upload[tile];
  let first_pair = upload[tile + 1u];
  let num_pairs = upload[tile + 2u];
  let pairs = upload[header_pairs_word];

  let lane = thread & 15u;
  let output = group.x * outputs_per_group + (thread >> 4u) * 2u;
  let chunks = hidden_size / 32u;
  let groups = chunks >> chunks_per_group_log2;
  let codes_0 = blob / 4u + output * chunks;
  let codes_1 = codes_0 + chunks;
  let codes_2 = codes_0 + moe_intermediate_size * chunks;
  let codes_3 = codes_2 + chunks;
  let scales_0 = blob + gate_up_scale_zero_word + output * groups;
  let scales_1 = scales_0 + groups;
  let scales_2 = scales_0 + moe_intermediate_size * groups;
  let scales_3 = scales_2 + groups;

  // Rows beyond the tile's end repeat its last one and are not stored.
//@ for r in 0..rows
  let x_base_${r} = upload[pairs + 2u * (first_pair + min(${r}u, num_pairs - 1u))] * (hidden_size / 4u);
//@ for w in 0..4
  var sum_${r}_${w} = 0.0;
//@ end
//@ end
  for (var chunk = lane; chunk < chunks; chunk += 16u) {
    let scale_at = chunk >> chunks_per_group_log2;
//@ for w in 0..4
    var code_${w} = codes[codes_${w} + chunk];
    let scale_zero_${w} = words[scales_${w} + scale_at];
//@ end
//@ include int4_chunk.wgsl
  }

  // The gates' lanes first, then the ups' through the same memory.
  let slot = (thread >> 4u) * 17u + lane;
//@ for r in 0..rows
  lane_sums[${r}u * 272u + slot] = sum_${r}_0;
  lane_sums[${r}u * 272u + 136u + slot] = sum_${r}_1;
//@ end
  workgroupBarrier();

  // One thread adds the 16 lanes of one output of one row.
  let row = thread >> 4u;
  let local_output = thread & 15u;
  let first_lane = min(row, tile_rows - 1u) * 272u + (local_output & 1u) * 136u + (local_output >> 1u) * 17u;
  var gate = lane_sums[first_lane];
//@ for i in 1..16
  gate += lane_sums[first_lane + ${i}u];
//@ end
  workgroupBarrier();
//@ for r in 0..rows
  lane_sums[${r}u * 272u + slot] = sum_${r}_2;
  lane_sums[${r}u * 272u + 136u + slot] = sum_${r}_3;
//@ end
  workgroupBarrier();
  var up = lane_sums[first_lane];
//@ for i in 1..16
  up += lane_sums[first_lane + ${i}u];
//@ end

  if (row < num_pairs && row < tile_rows) {
    let stored = transposed(group.x * outputs_per_group + local_output, moe_intermediate_size);
    intermediate[(first_pair + row) * moe_intermediate_size + stored] = silu_times(gate, up);
  }
}
