// First step of a grouped round: the rows of x, in wire form, become f32.
//   @binding(0) upload   read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) x        read_write  f32 [num_tokens, hidden_size]
// Dispatch (ceil(num_tokens * hidden_size / 256), 1, 1), 64 threads of four values each.
// Twin: decode_rows() in protocol/tensor_format.h, exact for f16, bf16, f32 and int8.
const values_per_thread: u32 = 4u;
const header_num_tokens: u32 = 0u;
const header_hidden_size: u32 = 1u;
const header_dtype: u32 = 5u;
const header_x_word: u32 = 6u;

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;

// Exact, subnormals included: some GPUs flush them in unpack2x16float.
fn half_to_float(h: u32) -> f32 {
  let magnitude = h & 0x7fffu;
  if (magnitude < 0x0400u) {
    let value = f32(magnitude) * 5.9604644775390625e-8;  // 2^-24
    return select(value, -value, (h & 0x8000u) != 0u);
  }
  return bitcast<f32>(((h & 0x8000u) << 16u) | ((magnitude << 13u) + 0x38000000u));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let hidden = upload[header_hidden_size];
  let quad = id.x;
  let num_values = upload[header_num_tokens] * hidden;
  if (quad * 4u >= num_values) {
    return;
  }

  let base = upload[header_x_word];
  let dtype = upload[header_dtype];
  var value: vec4<f32>;
  if (dtype == 5u) {  // f32
    let at = base + quad * 4u;
    value = vec4<f32>(bitcast<f32>(upload[at]), bitcast<f32>(upload[at + 1u]),
                      bitcast<f32>(upload[at + 2u]), bitcast<f32>(upload[at + 3u]));
  } else if (dtype == 3u) {  // int8 codes, then one f32 scale a row
    let codes = upload[base + quad];
    let scale = bitcast<f32>(upload[base + num_values / 4u + (quad * 4u) / hidden]);
    let code = vec4<i32>(vec4<u32>(codes << 24u, codes << 16u, codes << 8u, codes)) >> vec4<u32>(24u, 24u, 24u, 24u);
    value = vec4<f32>(code) * scale;
  } else {
    let low = upload[base + quad * 2u];
    let high = upload[base + quad * 2u + 1u];
    if (dtype == 2u) {  // bf16
      value = vec4<f32>(bitcast<f32>(low << 16u), bitcast<f32>(low & 0xffff0000u),
                        bitcast<f32>(high << 16u), bitcast<f32>(high & 0xffff0000u));
    } else {  // f16
      value = vec4<f32>(half_to_float(low & 0xffffu), half_to_float(low >> 16u),
                        half_to_float(high & 0xffffu), half_to_float(high >> 16u));
    }
  }

  x[quad] = value;
}
