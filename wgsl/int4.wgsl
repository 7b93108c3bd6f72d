// Common parts of the kernels of a grouped round: the shape of the experts, INT4 or MXFP4 weights, the order of the
// sums.
// The shape is set when a pipeline is created, so that loops are unrolled and divisions become shifts.
override hidden_size: u32;
override moe_intermediate_size: u32;
override chunks_per_group_log2: u32;     // chunks of 32 weights per quantisation group of 32, 64 or 128
override gate_up_scale_zero_word: u32;   // this and the next two: word offsets in an expert's blob
override down_codes_word: u32;
override down_scale_zero_word: u32;
//@ include arithmetic.wgsl
//@ for i in 0..mxfp4
//@ include mxfp4.wgsl
//@ end
