// Merges the parts of a row's attention, which are one per page, from the first page to the last.
//   @binding(0) rows      read        u32: rows.wgsl
//   @binding(1) parts     read        f32 [num_rows, num_heads, part_pages, head_dim]: attend_page.wgsl
//   @binding(2) peaks     read        f32 [num_rows, num_heads, part_pages, 2]
//   @binding(3) attended  read_write  f32 [num_rows, num_heads * head_dim], rows transposed where weights are INT4
//   @binding(4) sinks     read        `sinks` only: f32 [num_heads], a further logit of each head, which takes part in
//                                     the softmax and has no value
// With a window, the pages before it are left out.
// One workgroup a head. Dispatch (num_heads, number of rows, 1).
// CPU reference: attend() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-5.
//@ host_checked
//@ include rows.wgsl
//@ include ../arithmetic.wgsl
override num_heads: u32;
override head_dim: u32;
override transposes: u32;
override window: u32;   // attend_page.wgsl

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read> peaks: array<f32>;
@group(0) @binding(3) var<storage, read_write> attended: array<f32>;
//@ for i in 0..sinks
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
//@ end

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  let position = rows[rows_word + 4u * row + 1u];
  let num_pages = position / page_tokens + 1u;
  var first_page = 0u;
  if (window != 0u) {
    first_page = (max(position + 1u, window) - window) / page_tokens;
  }
  let first = (row * num_heads + group.x) * rows[part_pages_word];

  var peak = peaks[2u * (first + first_page)];
  for (var page = first_page + 1u; page < num_pages; page += 1u) {
    peak = max(peak, peaks[2u * (first + page)]);
  }
//@ for i in 0..sinks
  peak = max(peak, sinks[group.x]);
//@ end
  for (var d = thread; d < head_dim; d += 128u) {
    var sum = 0.0;
    var mix = 0.0;
    for (var page = first_page; page < num_pages; page += 1u) {
      let weight = exp(peaks[2u * (first + page)] - peak);
      sum = fma(weight, peaks[2u * (first + page) + 1u], sum);
      mix = fma(weight, parts[(first + page) * head_dim + d], mix);
    }
//@ for i in 0..sinks
    sum += exp(sinks[group.x] - peak);
//@ end
    let column = group.x * head_dim + d;
    let stored = select(column, transposed(column, num_heads * head_dim), transposes != 0u);
    attended[row * num_heads * head_dim + stored] = mix / sum;
  }
}
