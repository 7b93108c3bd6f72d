// Returns four neighbouring values of the round's x, which is stored in `upload` in wire form: quad `quad` of row
// `row`.
// The including file defines the binding `upload`, wire_rows.wgsl, the header words and hidden_size.
fn wire_quad(row: u32, quad: u32) -> vec4<f32> {
  let base = upload[header_x_word];
  let dtype = upload[header_x_dtype];
  let at = row * (hidden_size / 4u) + quad;

  if (dtype == dtype_f32) {
    let word = base + at * 4u;
    return vec4<f32>(bitcast<f32>(upload[word]), bitcast<f32>(upload[word + 1u]),
                     bitcast<f32>(upload[word + 2u]), bitcast<f32>(upload[word + 3u]));
  }
  if (dtype == dtype_int8) {  // the codes of all rows, then one f32 scale per row
    let codes = upload[base + at];
    let scale = bitcast<f32>(upload[base + upload[header_num_tokens] * (hidden_size / 4u) + row]);
    let code = vec4<i32>(vec4<u32>(codes << 24u, codes << 16u, codes << 8u, codes)) >> vec4<u32>(24u);
    return vec4<f32>(code) * scale;
  }

  let low = upload[base + at * 2u];
  let high = upload[base + at * 2u + 1u];
  if (dtype == dtype_bf16) {
    return vec4<f32>(bitcast<f32>(low << 16u), bitcast<f32>(low & 0xffff0000u),
                     bitcast<f32>(high << 16u), bitcast<f32>(high & 0xffff0000u));
  }
  return vec4<f32>(half_to_float(low & 0xffffu), half_to_float(low >> 16u),
                   half_to_float(high & 0xffffu), half_to_float(high >> 16u));
}
