// Second half of the experts' FFNs of a grouped round, for all experts of one arena at once:
// y of each pair = gate · (intermediate · downᵀ)
//   @binding(0) upload        read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) codes         read        u32x4: an arena of expert blobs, for the codes
//   @binding(2) words         read        u32: the same arena, for scales and zeros
//   @binding(3) intermediate  read        f32 [num_pairs, moe_intermediate_size]
//   @binding(4) y_pairs       read_write  f32 [num_pairs, hidden_size]
//   @binding(5) place         uniform     GroupPlace, 16 bytes
// Tiles, lanes and the order of sums as in group_gate_up.wgsl.
// Dispatch (ceil(hidden_size / 4), number of tiles, 1).
// Twin: expert_down() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
override tile_rows: u32 = 1;
const outputs_per_group: u32 = 4u;

const header_hidden_size: u32 = 1u;
const header_moe_intermediate_size: u32 = 2u;
const header_group_size: u32 = 3u;
const header_pairs_word: u32 = 8u;
const header_down_codes_word: u32 = 12u;       // from the start of a blob
const header_down_scale_zero_word: u32 = 13u;

struct GroupPlace { first_tile_word: u32, unused_0: u32, unused_1: u32, unused_2: u32 }

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> intermediate: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y_pairs: array<f32>;
@group(0) @binding(5) var<uniform> place: GroupPlace;

var<workgroup> sums: array<f32, 64u * tile_rows>;

fn low_nibbles(word: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u));
}
fn high_nibbles(word: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(word) >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u));
}

@compute @workgroup_size(64)

fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let outputs = upload[header_hidden_size];
  let inputs = upload[header_moe_intermediate_size];
  let group_size = upload[header_group_size];
  let pairs = upload[header_pairs_word];
  let tile = upload[place.first_tile_word] + group.y * 4u;
  let blob = upload[tile];
  let first_pair = upload[tile + 1u];
  let num_pairs = upload[tile + 2u];

  let lane = thread & 15u;
  let output = min(group.x * outputs_per_group + (thread >> 4u), outputs - 1u);
  let chunks = inputs / 32u;
  let first_chunk = (blob + upload[header_down_codes_word]) / 4u + output * chunks;
  let first_scale = blob + upload[header_down_scale_zero_word] + output * (inputs / group_size);
  let chunks_per_group = group_size / 32u;

  var sum: array<f32, tile_rows>;
  for (var row = 0u; row < tile_rows; row += 1u) {
    sum[row] = 0.0;
  }

  for (var chunk = lane; chunk < chunks; chunk += 16u) {
    let code = codes[first_chunk + chunk];
    let sz = unpack2x16float(words[first_scale + chunk / chunks_per_group]);

    for (var row = 0u; row < tile_rows; row += 1u) {
      let at = (first_pair + min(row, num_pairs - 1u)) * (inputs / 4u) + chunk * 8u;
      let x0 = intermediate[at];
      let x1 = intermediate[at + 1u];
      let x2 = intermediate[at + 2u];
      let x3 = intermediate[at + 3u];
      let x4 = intermediate[at + 4u];
      let x5 = intermediate[at + 5u];
      let x6 = intermediate[at + 6u];
      let x7 = intermediate[at + 7u];

      let total = dot(((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7)), vec4<f32>(1.0));
      let code_dot = ((dot(low_nibbles(code.x), x0) + dot(high_nibbles(code.x), x1))
                    + (dot(low_nibbles(code.y), x2) + dot(high_nibbles(code.y), x3)))
                   + ((dot(low_nibbles(code.z), x4) + dot(high_nibbles(code.z), x5))
                    + (dot(low_nibbles(code.w), x6) + dot(high_nibbles(code.w), x7)));

      sum[row] += sz.x * (code_dot - sz.y * total);
    }
  }

  for (var row = 0u; row < tile_rows; row += 1u) {
    sums[row * 64u + thread] = sum[row];
  }

  workgroupBarrier();

  if (thread < 4u * tile_rows) {
    let row = thread >> 2u;
    let local_output = thread & 3u;
    let stored_output = group.x * outputs_per_group + local_output;
    if (row < num_pairs && stored_output < outputs) {
      var total = 0.0;
      for (var i = 0u; i < 16u; i += 1u) {
        total += sums[row * 64u + local_output * 16u + i];
      }
      // pair: row of x, gate as f32
      let gate = bitcast<f32>(upload[pairs + 2u * (first_pair + row) + 1u]);
      y_pairs[(first_pair + row) * outputs + stored_output] = gate * total;
    }
  }
}
