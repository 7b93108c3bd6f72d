// Last step of a grouped round that uses group_down: adds the outputs of each answer's (row, expert) pairs and writes
// it in wire form.
//   @binding(0) upload   read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) y_pairs  read        f32 [num_pairs, hidden_size]
//   @binding(2) y_wire   read_write  u32: f16, bf16, f32 rows, or int8 codes and then one f32 scale a row
// Pairs are added in the order of the table (experts ascending). A thread has two neighbouring columns of an answer.
// For int8, which needs a row's peak, one workgroup has a whole row.
// Dispatch (ceil(hidden_size / 128), number of answers, 1); int8: (1, number of answers, 1).
// CPU reference: encode_rows() in protocol/tensor_format.h; f16 and bf16 round to nearest even, f16 overflow becomes
// infinity.
//@ host_checked
//@ include round_header.wgsl
//@ include int4.wgsl
//@ include wire_rows.wgsl
const columns_per_group: u32 = 128u;
const least_peak: u32 = 0x03fe0000u;   // bits of 127 * 2^-126; for a lower peak, the scale would be subnormal

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read> y_pairs: array<f32>;
@group(0) @binding(2) var<storage, read_write> y_wire: array<u32>;

var<workgroup> peaks: array<u32, 64>;

// Returns one value of an answer, before it is rounded to the wire form.
fn value_at(row: u32, column: u32) -> f32 {
  let starts = upload[header_answer_starts_word] + row;
  let list = upload[header_answer_pairs_word];
  var total = 0.0;
  for (var i = upload[starts]; i < upload[starts + 1u]; i += 1u) {
    total += y_pairs[upload[list + 4u * i + 1u] * hidden_size + column];
  }
  return total;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let dtype = upload[header_dtype];
  let row = group.y;

  if (dtype != dtype_int8) {
    let column = group.x * columns_per_group + 2u * thread;
    if (column < hidden_size) {
      let low = value_at(row, column);
      let high = value_at(row, column + 1u);
      if (dtype == dtype_f32) {
        y_wire[row * hidden_size + column] = bitcast<u32>(low);
        y_wire[row * hidden_size + column + 1u] = bitcast<u32>(high);
      } else {
        y_wire[(row * hidden_size + column) / 2u] = pack_two(dtype, low, high);
      }
    }
    return;
  }

  // Find the peak with the bits of the floats: without the sign, bits have the same order as floats, and infinity and
  // NaN are the largest. max() of floats may drop a NaN.
  var thread_peak = 0u;
  for (var column = thread; column < hidden_size; column += 64u) {
    thread_peak = max(thread_peak, bitcast<u32>(value_at(row, column)) & 0x7fffffffu);
  }
  peaks[thread] = thread_peak;
  workgroupBarrier();

  var peak = 0u;
  for (var i = 0u; i < 64u; i += 1u) {
    peak = max(peak, peaks[i]);
  }

  let broken = peak >= 0x7f800000u;
  let scale = select(bitcast<f32>(peak) / 127.0, 0.0, broken || peak < least_peak);
  if (thread == 0u) {
    // A row with infinity or NaN gets the scale NaN, so that the receiver sees the error.
    y_wire[upload[header_num_answers] * hidden_size / 4u + row] = select(bitcast<u32>(scale), 0x7fc00000u, broken);
  }

  let inverse = select(0.0, 1.0 / scale, scale > 0.0);
  for (var quad = thread; quad < hidden_size / 4u; quad += 64u) {
    var packed = 0u;
    for (var i = 0u; i < 4u; i += 1u) {
      let code = i32(clamp(round(value_at(row, quad * 4u + i) * inverse), -127.0, 127.0));
      packed |= (u32(code) & 0xffu) << (8u * i);
    }
    y_wire[row * (hidden_size / 4u) + quad] = packed;
  }
}
