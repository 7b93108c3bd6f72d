// The arithmetic of every kernel with weights. It fixes the order of operations, so that a compiler cannot change a
// sum.

// Returns the nibbles of half a word as floats, exactly and without an integer conversion: with its high bits set, a
// word is the float 2^23 (2^19, 2^15, 2^11) + nibble.
fn low_nibbles(word: u32) -> vec4<f32> {
  let bits = (vec4<u32>(word) & vec4<u32>(0xfu, 0xf0u, 0xf00u, 0xf000u))
           | vec4<u32>(0x4b000000u, 0x49000000u, 0x47000000u, 0x45000000u);
  return bitcast<vec4<f32>>(bits) - vec4<f32>(8388608.0, 524288.0, 32768.0, 2048.0);
}
fn high_nibbles(word: u32) -> vec4<f32> {
  return low_nibbles(word >> 16u);
}

// Returns sum + code · x, added in this order. Every multiplication that a compiler could fuse with an addition is
// written as fma(), so that the kernels for one row and for many rows give the same bits.
fn add_dot(code: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 {
  return fma(code.w, x.w, fma(code.z, x.z, fma(code.y, x.y, fma(code.x, x.x, sum))));
}
fn sum_of(x: vec4<f32>) -> f32 {
  return (x.x + x.y) + (x.z + x.w);
}

fn silu_times(gate: f32, up: f32) -> f32 {
  return gate / (1.0 + exp(-gate)) * up;
}

// Returns the position of `value` in a transposed row of `size` values. Four consecutive values are a quad; quad q of
// chunk c is stored at q * chunks + c. Lanes take neighbouring chunks, so they read neighbouring memory.
fn transposed(value: u32, size: u32) -> u32 {
  return (((value & 31u) >> 2u) * (size / 32u) + (value >> 5u)) * 4u + (value & 3u);
}
