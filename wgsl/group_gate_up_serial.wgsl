// group_gate_up.wgsl for software adapters, which run the threads of a workgroup one after the other: a single thread
// adds the values of the 16 lanes, in the same order, without shared memory or a barrier. The result has the same bits.
//   The bindings are those of group_gate_up.wgsl.
// Dispatch (moe_intermediate_size / 32, number of tiles, 1).
// CPU reference: expert_gate_up() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include round_header.wgsl
//@ include int4.wgsl
//@ for i in 0..clamped
//@ include clamped.wgsl
//@ end
//@ include gate_up_bindings.wgsl
const outputs_per_group: u32 = 32u;
const tile_rows: u32 = ${rows}u;

@compute @workgroup_size(16)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let output = group.x * outputs_per_group + thread * 2u;
//@ include gate_up_tile.wgsl

//@ for r in 0..rows
//@ for w in 0..4
  var answer_${r}_${w} = 0.0;
//@ end
//@ end
  for (var lane = 0u; lane < 16u; lane += 1u) {
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
//@ for r in 0..rows
//@ for w in 0..4
    answer_${r}_${w} = select(answer_${r}_${w} + sum_${r}_${w}, sum_${r}_${w}, lane == 0u);
//@ end
//@ end
  }

//@ for i in 0..clamped
  let bias = blob + gate_up_bias_word + output;
//@ for w in 0..2
  let gate_bias_${w} = bitcast<f32>(words[bias + ${w}u]);
  let up_bias_${w} = bitcast<f32>(words[bias + moe_intermediate_size + ${w}u]);
//@ end
//@ end
//@ for r in 0..rows
  if (${r}u < num_pairs) {
    let row = (first_pair + ${r}u) * moe_intermediate_size;
//@ for i in 0..plain
    intermediate[row + transposed(output, moe_intermediate_size)] = silu_times(answer_${r}_0, answer_${r}_2);
    intermediate[row + transposed(output + 1u, moe_intermediate_size)] = silu_times(answer_${r}_1, answer_${r}_3);
//@ end
//@ for i in 0..clamped
    intermediate[row + transposed(output, moe_intermediate_size)] =
      clamped_swiglu(answer_${r}_0 + gate_bias_0, answer_${r}_2 + up_bias_0);
    intermediate[row + transposed(output + 1u, moe_intermediate_size)] =
      clamped_swiglu(answer_${r}_1 + gate_bias_1, answer_${r}_3 + up_bias_1);
//@ end
  }
//@ end
}
