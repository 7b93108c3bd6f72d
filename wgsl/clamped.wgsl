// Parts of the kernels of experts with biases and a clamped SwiGLU (gpt-oss). Kernels of plain experts do not include
// this file.
override limit_bits: u32;          // the limit of the clamp, as f32 bits
override gate_up_bias_word: u32;   // this and the next: word offsets in an expert's blob
override down_bias_word: u32;

// Returns g * sigmoid(1.702 g) * (u + 1) with g = min(gate, limit) and u = clamp(up, -limit, limit). Both arguments
// have their biases.
fn clamped_swiglu(gate: f32, up: f32) -> f32 {
  let limit = bitcast<f32>(limit_bits);
  let g = min(gate, limit);
  let u = clamp(up, -limit, limit);
  return g / (1.0 + exp(-1.702 * g)) * (u + 1.0);
}
