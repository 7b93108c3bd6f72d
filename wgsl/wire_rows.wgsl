// Conversions of rows in wire form. CPU references: decode_rows() and encode_rows() in protocol/tensor_format.h.
const dtype_bf16: u32 = 2u;
const dtype_int8: u32 = 3u;
const dtype_f32: u32 = 5u;

// Converts f16 bits to f32. It is exact also for subnormals, which some GPUs flush to zero in unpack2x16float().
fn half_to_float(h: u32) -> f32 {
  let magnitude = h & 0x7fffu;
  if (magnitude < 0x0400u) {
    let value = f32(magnitude) * 5.9604644775390625e-8;  // 2^-24
    return select(value, -value, (h & 0x8000u) != 0u);
  }
  return bitcast<f32>(((h & 0x8000u) << 16u) | ((magnitude << 13u) + 0x38000000u));
}

fn float_to_half(value: f32) -> u32 {
  let bits = bitcast<u32>(value);
  let sign = (bits >> 16u) & 0x8000u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return sign | 0x7e00u;
  }
  if (magnitude >= 0x477ff000u) {
    return sign | 0x7c00u;
  }
  if (magnitude >= 0x38800000u) {
    let rebased = magnitude - 0x38000000u;
    return sign | ((rebased + 0xfffu + ((rebased >> 13u) & 1u)) >> 13u);
  }
  let shifted = bitcast<f32>(magnitude) + 0.5;
  return sign | (bitcast<u32>(shifted) - 0x3f000000u);
}

fn float_to_bfloat16(value: f32) -> u32 {
  let bits = bitcast<u32>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (bits >> 16u) | 0x40u;
  }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// Packs two neighbouring values into one word of f16 or bf16.
fn pack_two(dtype: u32, low: f32, high: f32) -> u32 {
  if (dtype == dtype_bf16) {
    return float_to_bfloat16(low) | (float_to_bfloat16(high) << 16u);
  }
  return float_to_half(low) | (float_to_half(high) << 16u);
}
