// group_down.wgsl for software adapters, which run the threads of a workgroup one after the other: a single thread adds
// the values of the 8 lanes, in the same order, without shared memory or a barrier. The result has the same bits.
//   The bindings are those of group_down.wgsl.
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

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let output = group.x * outputs_per_group + thread * 4u;
//@ include down_tile.wgsl

//@ for r in 0..rows
//@ for w in 0..4
  var answer_${r}_${w} = 0.0;
//@ end
//@ end
  for (var lane = 0u; lane < 8u; lane += 1u) {
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
    answer_${r}_${w} = select(answer_${r}_${w} + sum_${r}_${w}, sum_${r}_${w}, lane == 0u);
//@ end
//@ end
  }

//@ for i in 0..clamped
//@ for w in 0..4
  let bias_${w} = bitcast<f32>(words[blob + down_bias_word + output + ${w}u]);
//@ end
//@ end
//@ for r in 0..rows
  if (${r}u < num_pairs) {
    let gate = bitcast<f32>(upload[pairs + 2u * (first_pair + ${r}u) + 1u]);
    let row = (first_pair + ${r}u) * hidden_size + output;
//@ for w in 0..4
//@ for i in 0..plain
    y_pairs[row + ${w}u] = gate * answer_${r}_${w};
//@ end
//@ for i in 0..clamped
    y_pairs[row + ${w}u] = gate * (answer_${r}_${w} + bias_${w});
//@ end
//@ end
  }
//@ end
}
