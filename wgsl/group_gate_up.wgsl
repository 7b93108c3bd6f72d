// First half of the experts' FFNs of a grouped round, for experts of one arena that have several rows each:
// intermediate = silu(x · gateᵀ) * (x · upᵀ)
//   @binding(0) upload        read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) codes         read        u32x4: an arena of expert blobs, for the codes
//   @binding(2) words         read        u32: the same arena, for scales and zeros (2×f16 a word: scale, zero)
//   @binding(3) x             read        f32 [num_tokens, hidden_size], rows transposed (unpack_rows.wgsl)
//   @binding(4) intermediate  read_write  f32 [num_pairs, moe_intermediate_size], rows transposed
//   @binding(5) place         uniform     arena, list of tiles: GroupPlace in web-worker/gpu/round_layout.h, 16 bytes
// `clamped`: both products have biases, and the values are those of clamped_swiglu() in clamped.wgsl.
// A tile has up to ${rows} rows of the same expert. 16 lanes share two outputs (four rows of weights) of a tile, each
// lane takes every 16th chunk of 32 inputs. A row's sums do not depend on the number of rows.
// Dispatch (moe_intermediate_size / 16, number of tiles, 1).
// CPU reference: expert_gate_up() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include round_header.wgsl
//@ include int4.wgsl
//@ for i in 0..clamped
//@ include clamped.wgsl
//@ end
//@ include gate_up_bindings.wgsl
const outputs_per_group: u32 = 16u;
const tile_rows: u32 = ${rows}u;

var<workgroup> lane_sums: array<f32, 272u * ${rows}u>;   // per row: 2 outputs x 8 x 16 partial sums, padded

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread & 15u;
  let output = group.x * outputs_per_group + (thread >> 4u) * 2u;
//@ include gate_up_tile.wgsl
//@ for r in 0..rows
//@ for w in 0..4
  var sum_${r}_${w} = 0.0;
//@ end
//@ end
  for (var chunk = lane; chunk < chunks; chunk += 16u) {
    let scale_at = chunk >> chunks_per_group_log2;
//@ for w in 0..4
    var code_${w} = codes[codes_${w} + chunk];
//@ for i in 0..affine
    let scale_zero_${w} = words[scales_${w} + scale_at];
//@ end
//@ for i in 0..mxfp4
    let scale_zero_${w} = mxfp4_scale(scales_${w} + scale_at);
//@ end
//@ end
//@ include int4_chunk.wgsl
  }

  // Add the lanes' sums for gate first, then the lanes' sums for up in the same workgroup memory.
  let slot = (thread >> 4u) * 17u + lane;
//@ for r in 0..rows
  lane_sums[${r}u * 272u + slot] = sum_${r}_0;
  lane_sums[${r}u * 272u + 136u + slot] = sum_${r}_1;
//@ end
  workgroupBarrier();

  // For each output of a row, a single thread adds the partial sums of the 16 lanes.
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
//@ for i in 0..plain
    intermediate[(first_pair + row) * moe_intermediate_size + stored] = silu_times(gate, up);
//@ end
//@ for i in 0..clamped
    let bias = blob + gate_up_bias_word + group.x * outputs_per_group + local_output;
    intermediate[(first_pair + row) * moe_intermediate_size + stored] =
      clamped_swiglu(gate + bitcast<f32>(words[bias]), up + bitcast<f32>(words[bias + moe_intermediate_size]));
//@ end
  }
}
