  // Offsets of four weight rows: the gate rows of `output` and of the next output, then the up rows of both outputs.
  let chunks = hidden_size / 32u;
  let groups = chunks >> chunks_per_group_log2;
  let codes_0 = blob / 4u + output * chunks;
  let codes_1 = codes_0 + chunks;
  let codes_2 = codes_0 + moe_intermediate_size * chunks;
  let codes_3 = codes_2 + chunks;
//@ for i in 0..affine
  let scales_0 = blob + gate_up_scale_zero_word + output * groups;
//@ end
//@ for i in 0..mxfp4
  let scales_0 = (blob + gate_up_scale_zero_word) * 4u + output * groups;
//@ end
  let scales_1 = scales_0 + groups;
  let scales_2 = scales_0 + moe_intermediate_size * groups;
  let scales_3 = scales_2 + groups;
