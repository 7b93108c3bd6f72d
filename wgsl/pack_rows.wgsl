// Last step of a grouped round: the pairs' answers in wire form, summed per token or as they are.
//   @binding(0) upload   read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) y_pairs  read        f32 [num_pairs, hidden_size]
//   @binding(2) y_wire   read_write  u32: f16, bf16, f32 rows, or int8 codes and then one f32 scale a row
// One workgroup per answered row. Summed rows add their pairs in the order of the table (experts ascending).
// Dispatch (number of answered rows, 1, 1).
// Twin: encode_rows() in protocol/tensor_format.h; f16 and bf16 round to nearest even, f16 overflow becomes infinity.
const least_peak: u32 = 0x03fe0000u;   // 127 * 2^-126: below it the scale would be subnormal, which a GPU may flush
const header_num_tokens: u32 = 0u;
const header_hidden_size: u32 = 1u;
const header_num_pairs: u32 = 4u;
const header_dtype: u32 = 5u;
const header_unsummed: u32 = 7u;
const header_token_starts_word: u32 = 9u;
const header_token_pairs_word: u32 = 10u;

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read> y_pairs: array<f32>;
@group(0) @binding(2) var<storage, read_write> y_wire: array<u32>;

var<workgroup> peaks: array<u32, 64>;

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

// The answer of one column of one row, before rounding.
fn value_at(row: u32, column: u32) -> f32 {
  let hidden = upload[header_hidden_size];
  if (upload[header_unsummed] != 0u) {
    return y_pairs[row * hidden + column];
  }

  let starts = upload[header_token_starts_word];
  let list = upload[header_token_pairs_word];
  var total = 0.0;
  for (var i = upload[starts + row]; i < upload[starts + row + 1u]; i += 1u) {
    total += y_pairs[upload[list + i] * hidden + column];
  }
  return total;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let hidden = upload[header_hidden_size];
  let dtype = upload[header_dtype];
  let row = group.x;

  if (dtype == 3u) {
    // Without their sign floats order as their bits do, infinity and NaN on top; max() of floats may drop a NaN.
    var peak = 0u;
    for (var column = thread; column < hidden; column += 64u) {
      peak = max(peak, bitcast<u32>(value_at(row, column)) & 0x7fffffffu);
    }
    peaks[thread] = peak;
  }

  workgroupBarrier();
  if (dtype == 3u) {
    var peak = 0u;
    for (var i = 0u; i < 64u; i += 1u) {
      peak = max(peak, peaks[i]);
    }

    let broken = peak >= 0x7f800000u;
    let scale = select(bitcast<f32>(peak) / 127.0, 0.0, broken || peak < least_peak);
    let rows = select(upload[header_num_tokens], upload[header_num_pairs], upload[header_unsummed] != 0u);

    if (thread == 0u) {
      // A broken row stays visibly broken.
      y_wire[rows * hidden / 4u + row] = select(bitcast<u32>(scale), 0x7fc00000u, broken);
    }

    let inverse = select(0.0, 1.0 / scale, scale > 0.0);
    for (var quad = thread; quad < hidden / 4u; quad += 64u) {
      var packed = 0u;
      for (var i = 0u; i < 4u; i += 1u) {
        let code = i32(clamp(round(value_at(row, quad * 4u + i) * inverse), -127.0, 127.0));
        packed |= (u32(code) & 0xffu) << (8u * i);
      }
      y_wire[row * (hidden / 4u) + quad] = packed;
    }
  } else if (dtype == 5u) {
    for (var column = thread; column < hidden; column += 64u) {
      y_wire[row * hidden + column] = bitcast<u32>(value_at(row, column));
    }
  } else {
    for (var pair = thread; pair < hidden / 2u; pair += 64u) {
      let low = value_at(row, pair * 2u);
      let high = value_at(row, pair * 2u + 1u);
      if (dtype == 2u) {
        y_wire[row * (hidden / 2u) + pair] = float_to_bfloat16(low) | (float_to_bfloat16(high) << 16u);
      } else {
        y_wire[row * (hidden / 2u) + pair] = float_to_half(low) | (float_to_half(high) << 16u);
      }
    }
  }
}
