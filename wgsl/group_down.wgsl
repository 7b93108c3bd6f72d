// Second half of the experts' FFNs of a grouped round, for all experts of one arena at once:
// y of each (row, expert) pair = gate · (intermediate · downᵀ)
//   @binding(0) upload        read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) codes         read        u32x4: an arena of expert blobs, for the codes
//   @binding(2) words         read        u32: the same arena, for scales and zeros
//   @binding(3) intermediate  read        f32 [num_pairs, moe_intermediate_size], rows transposed
//   @binding(4) y_pairs       read_write  f32 [num_pairs, hidden_size]
//   @binding(5) place         uniform     GroupPlace, 16 bytes
// `clamped`: the product has a bias.
// A tile has up to ${rows} rows of the same expert. 8 lanes share four outputs of a tile, each lane takes every 8th
// chunk of 32 inputs. A row's sums do not depend on the number of rows.
// Dispatch (hidden_size / 32, number of tiles, 1).
// CPU reference: expert_down() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include round_header.wgsl
//@ include int4.wgsl
//@ for i in 0..clamped
//@ include clamped.wgsl
//@ end
//@ include down_bindings.wgsl
const outputs_per_group: u32 = 32u;
const tile_rows: u32 = ${rows}u;

var<workgroup> lane_sums: array<f32, 288u * ${rows}u>;   // per row: 4 outputs x 8 x 8 partial sums, padded

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread & 7u;
  let output = group.x * outputs_per_group + (thread >> 3u) * 4u;
//@ include down_tile.wgsl
//@ for r in 0..rows
//@ for w in 0..4
  var sum_${r}_${w} = 0.0;
//@ end
//@ end
  for (var chunk = lane; chunk < chunks; chunk += 8u) {
    let scale_at = scales_0 + (chunk >> chunks_per_group_log2);
//@ for w in 0..4
    var code_${w} = codes[codes_0 + ${w}u * chunks + chunk];
//@ for i in 0..affine
    let scale_zero_${w} = words[scale_at + ${w}u * groups];
//@ end
//@ for i in 0..mxfp4
    let scale_zero_${w} = mxfp4_scale(scale_at + ${w}u * groups);
//@ end
//@ end
//@ include int4_chunk.wgsl
  }

//@ for r in 0..rows
//@ for w in 0..4
  lane_sums[${r}u * 288u + ${w}u * 72u + (thread >> 3u) * 9u + lane] = sum_${r}_${w};
//@ end
//@ end
  workgroupBarrier();

  // For each output of a row, a single thread adds the partial sums of the 8 lanes.
  let local_output = thread & 31u;
  for (var row = thread >> 5u; row < min(num_pairs, tile_rows); row += 2u) {
    let first_lane = row * 288u + (local_output & 3u) * 72u + (local_output >> 2u) * 9u;
    var sum = lane_sums[first_lane];
//@ for i in 1..8
    sum += lane_sums[first_lane + ${i}u];
//@ end
//@ for i in 0..clamped
    sum += bitcast<f32>(words[blob + down_bias_word + group.x * outputs_per_group + local_output]);
//@ end
    // Words of a pair: row of x, gate as f32 bits.
    let gate = bitcast<f32>(upload[pairs + 2u * (first_pair + row) + 1u]);
    y_pairs[(first_pair + row) * hidden_size + group.x * outputs_per_group + local_output] = gate * sum;
  }
}
