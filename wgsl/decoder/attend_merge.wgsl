// Merges the parts of a row's attention, which are one per page, from the first page to the last.
//   @binding(0) rows      read        u32: rows.wgsl
//   @binding(1) parts     read        f32 [num_rows, num_heads, part_pages, head_dim]: attend_page.wgsl
//   @binding(2) peaks     read        f32 [num_rows, num_heads, part_pages, 2]
//   @binding(3) attended  read_write  f32 [num_rows, num_heads * head_dim], rows transposed where weights are INT4
// One workgroup a head. Dispatch (num_heads, number of rows, 1).
// CPU reference: attend() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-5.
//@ host_checked
//@ include rows.wgsl
//@ include ../arithmetic.wgsl
override num_heads: u32;
override head_dim: u32;
override transposes: u32;

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read> peaks: array<f32>;
@group(0) @binding(3) var<storage, read_write> attended: array<f32>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  let num_pages = rows[rows_word + 4u * row + 1u] / page_tokens + 1u;
  let first = (row * num_heads + group.x) * rows[part_pages_word];

  var peak = peaks[2u * first];
  for (var page = 1u; page < num_pages; page += 1u) {
    peak = max(peak, peaks[2u * (first + page)]);
  }
  for (var d = thread; d < head_dim; d += 128u) {
    var sum = 0.0;
    var mix = 0.0;
    for (var page = 0u; page < num_pages; page += 1u) {
      let weight = exp(peaks[2u * (first + page)] - peak);
      sum = fma(weight, peaks[2u * (first + page) + 1u], sum);
      mix = fma(weight, parts[(first + page) * head_dim + d], mix);
    }
    let column = group.x * head_dim + d;
    let stored = select(column, transposed(column, num_heads * head_dim), transposes != 0u);
    attended[row * num_heads * head_dim + stored] = mix / sum;
  }
}
