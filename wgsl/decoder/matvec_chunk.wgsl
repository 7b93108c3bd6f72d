// Multiplies one chunk of ${inputs} inputs: ${rows} rows of x times ${outputs} rows of weights (code_WEIGHT), added to
// sum_ROW_WEIGHT.
//@ for i in 0..int4
let groups = chunks >> chunks_per_group_log2;
//@ for w in 0..outputs
let scale_zero_${w} = scale_zero[output_${w} * groups + (chunk >> chunks_per_group_log2)];
//@ end
//@ include ../int4_chunk.wgsl
//@ end
//@ for i in 0..bf16
//@ include bf16_chunk.wgsl
//@ end
//@ for i in 0..f32
//@ include f32_chunk.wgsl
//@ end
