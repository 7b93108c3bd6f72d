// The weights of MXFP4: E2M1 codes, and an E8M0 scale for each chunk of 32. The including file defines `words`, which
// the scales are read from.

// Returns the scale at a byte offset.
fn mxfp4_scale(byte: u32) -> u32 {
  return (words[byte >> 2u] >> ((byte & 3u) * 8u)) & 255u;
}
// Returns four times 2^(scale - 127), which is a normal number for every scale of a blob. The codes are quarters.
fn mxfp4_factor(scale: u32) -> f32 {
  return bitcast<f32>((scale + 2u) << 23u);
}
// Returns a quarter of the value of each nibble of half a word, exactly. The three bits of a value become the low bits
// of an exponent and the first bit of a mantissa: with g = 2^(e-3) · (1 + m/2), a quarter of the value is
// min(g, 2g - 1/4). This corrects the values 0 and 0.5, which have no exponent.
fn low_mxfp4(word: u32) -> vec4<f32> {
  let bits = ((vec4<u32>(word) << vec4<u32>(22u, 18u, 14u, 10u)) & vec4<u32>(0x01c00000u)) | vec4<u32>(0x3e000000u);
  let g = bitcast<vec4<f32>>(bits);
  let sign = (vec4<u32>(word) << vec4<u32>(28u, 24u, 20u, 16u)) & vec4<u32>(0x80000000u);
  return bitcast<vec4<f32>>(bitcast<vec4<u32>>(min(g, fma(vec4<f32>(2.0), g, vec4<f32>(-0.25)))) ^ sign);
}
fn high_mxfp4(word: u32) -> vec4<f32> {
  return low_mxfp4(word >> 16u);
}
