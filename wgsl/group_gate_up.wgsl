// First half of the experts' FFNs of a grouped round, for all experts of one arena at once:
// intermediate = silu(x · gateᵀ) * (x · upᵀ)
//   @binding(0) upload        read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) codes         read        u32x4: an arena of expert blobs, for the codes
//   @binding(2) words         read        u32: the same arena, for scales and zeros (2×f16 a word: scale, zero)
//   @binding(3) x             read        f32 [num_tokens, hidden_size]
//   @binding(4) intermediate  read_write  f32 [num_pairs, moe_intermediate_size]
//   @binding(5) place         uniform     arena, list of tiles: GroupPlace in web-worker/gpu/round_layout.h, 16 bytes
// A tile is up to tile_rows rows of one expert. A workgroup computes 4 outputs of a tile: 16 lanes share an output,
// each takes every 16th chunk of 32 weights.
// A row's sums do not depend on tile_rows, so that a batched answer is bit-equal to a single one.
// Dispatch (ceil(moe_intermediate_size / 4), number of tiles, 1).
// Twin: expert_gate_up() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
override tile_rows: u32 = 1;
const outputs_per_group: u32 = 4u;

const header_hidden_size: u32 = 1u;
const header_moe_intermediate_size: u32 = 2u;
const header_group_size: u32 = 3u;
const header_pairs_word: u32 = 8u;
const header_scale_zero_word: u32 = 11u;  // of gate_up, from the start of a blob

struct GroupPlace { first_tile_word: u32, unused_0: u32, unused_1: u32, unused_2: u32 }

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> intermediate: array<f32>;
@group(0) @binding(5) var<uniform> place: GroupPlace;

var<workgroup> gate_sums: array<f32, 64u * tile_rows>;
var<workgroup> up_sums: array<f32, 64u * tile_rows>;

fn low_nibbles(word: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u));
}
fn high_nibbles(word: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(word) >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let hidden = upload[header_hidden_size];
  let outputs = upload[header_moe_intermediate_size];
  let group_size = upload[header_group_size];
  let pairs = upload[header_pairs_word];

  // tile: blob's first word in the arena, first pair, number of pairs, unused
  let tile = upload[place.first_tile_word] + group.y * 4u;
  let blob = upload[tile];
  let first_pair = upload[tile + 1u];
  let num_pairs = upload[tile + 2u];

  let lane = thread & 15u;
  let output = min(group.x * outputs_per_group + (thread >> 4u), outputs - 1u);
  let chunks = hidden / 32u;

  let gate_chunk = blob / 4u + output * chunks;
  let up_chunk = gate_chunk + outputs * chunks;

  let groups = hidden / group_size;
  let gate_scale = blob + upload[header_scale_zero_word] + output * groups;
  let up_scale = gate_scale + outputs * groups;
  let chunks_per_group = group_size / 32u;

  var x_base: array<u32, tile_rows>;
  var gate_sum: array<f32, tile_rows>;
  var up_sum: array<f32, tile_rows>;
  for (var row = 0u; row < tile_rows; row += 1u) {
    // Rows beyond the tile's end repeat its last one and are not stored.
    x_base[row] = upload[pairs + 2u * (first_pair + min(row, num_pairs - 1u))] * (hidden / 4u);
    gate_sum[row] = 0.0;
    up_sum[row] = 0.0;
  }

  for (var chunk = lane; chunk < chunks; chunk += 16u) {
    let gate = codes[gate_chunk + chunk];
    let up = codes[up_chunk + chunk];
    let gate_sz = unpack2x16float(words[gate_scale + chunk / chunks_per_group]);
    let up_sz = unpack2x16float(words[up_scale + chunk / chunks_per_group]);

    for (var row = 0u; row < tile_rows; row += 1u) {
      let at = x_base[row] + chunk * 8u;
      let x0 = x[at];
      let x1 = x[at + 1u];
      let x2 = x[at + 2u];
      let x3 = x[at + 3u];
      let x4 = x[at + 4u];
      let x5 = x[at + 5u];
      let x6 = x[at + 6u];
      let x7 = x[at + 7u];

      let total = dot(((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7)), vec4<f32>(1.0));
      let gate_dot = ((dot(low_nibbles(gate.x), x0) + dot(high_nibbles(gate.x), x1))
                    + (dot(low_nibbles(gate.y), x2) + dot(high_nibbles(gate.y), x3)))
                   + ((dot(low_nibbles(gate.z), x4) + dot(high_nibbles(gate.z), x5))
                    + (dot(low_nibbles(gate.w), x6) + dot(high_nibbles(gate.w), x7)));
      let up_dot = ((dot(low_nibbles(up.x), x0) + dot(high_nibbles(up.x), x1))
                    + (dot(low_nibbles(up.y), x2) + dot(high_nibbles(up.y), x3)))
                   + ((dot(low_nibbles(up.z), x4) + dot(high_nibbles(up.z), x5))
                    + (dot(low_nibbles(up.w), x6) + dot(high_nibbles(up.w), x7)));

      gate_sum[row] += gate_sz.x * (gate_dot - gate_sz.y * total);
      up_sum[row] += up_sz.x * (up_dot - up_sz.y * total);
    }
  }

  for (var row = 0u; row < tile_rows; row += 1u) {
    gate_sums[row * 64u + thread] = gate_sum[row];
    up_sums[row * 64u + thread] = up_sum[row];
  }

  workgroupBarrier();

  // One thread adds the 16 lanes of one output of one row.
  if (thread < 4u * tile_rows) {
    let row = thread >> 2u;
    let local_output = thread & 3u;
    let stored_output = group.x * outputs_per_group + local_output;
    if (row < num_pairs && stored_output < outputs) {
      var gate_total = 0.0;
      var up_total = 0.0;
      for (var i = 0u; i < 16u; i += 1u) {
        gate_total += gate_sums[row * 64u + local_output * 16u + i];
        up_total += up_sums[row * 64u + local_output * 16u + i];
      }
      intermediate[(first_pair + row) * outputs + stored_output] = gate_total / (1.0 + exp(-gate_total)) * up_total;
    }
  }
}
