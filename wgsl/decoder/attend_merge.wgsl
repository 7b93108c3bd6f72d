// Merges the parts of a row's attention, which are one per page.
//   @binding(0) rows      read        u32: rows.wgsl
//   @binding(1) parts     read        f32 [num_rows, num_heads, part_pages, head_dim]: attend_page.wgsl
//   @binding(2) peaks     read        f32 [num_rows, num_heads, part_pages, 2]
//   @binding(3) attended  read_write  f32 [num_rows, num_heads * head_dim], rows transposed where weights are INT4
//   @binding(4) sinks     read        `sinks` only: f32 [num_heads], a further logit of each head, which takes part in
//                                     the softmax and has no value
// With a window, the pages before it are left out.
// A workgroup merges one head, in blocks of 256 pages. First each thread computes the weight of one page. Then each
// thread sums one quad of the values over every n-th page (a slice), and reads eight quads before it needs the first.
// The order of all sums depends on the number of pages only.
// Dispatch (num_heads, number of rows, 1).
// CPU reference: attend() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-5.
//@ host_checked
//@ include rows.wgsl
//@ include ../arithmetic.wgsl
const block_pages: u32 = 256u;
const least: f32 = -3.0e38;
override num_heads: u32;
override head_dim: u32;   // attend_page.wgsl
override transposes: u32;
override window: u32;     // attend_page.wgsl

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> peaks: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> attended: array<f32>;
//@ for i in 0..sinks
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
//@ end

var<workgroup> lanes: array<f32, 256>;         // peaks, later sums, of each thread's pages
var<workgroup> weights: array<f32, 256>;       // exp(peak of a page - peak) of a block's pages
var<workgroup> mixed: array<vec4<f32>, 256>;   // the slices' sums

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  let position = rows[rows_word + 4u * row + 1u];
  var first_page = 0u;
  if (window != 0u) {
    first_page = (max(position + 1u, window) - window) / page_tokens;
  }
  let num_pages = position / page_tokens + 1u - first_page;
  let first = (row * num_heads + group.x) * rows[part_pages_word] + first_page;

  var peak = least;
  for (var page = thread; page < num_pages; page += block_pages) {
    peak = max(peak, peaks[first + page].x);
  }
  lanes[thread] = peak;
  workgroupBarrier();
  for (var half = block_pages / 2u; half > 0u; half >>= 1u) {
    if (half < num_pages) {
      if (thread < half) {
        lanes[thread] = max(lanes[thread], lanes[thread + half]);
      }
      workgroupBarrier();
    }
  }
  peak = lanes[0];
//@ for i in 0..sinks
  peak = max(peak, sinks[group.x]);
//@ end
  workgroupBarrier();

  let quads = head_dim / 4u;
  let slices = block_pages / quads;
  let slice = thread / quads;
  let quad = thread % quads;
  var sum = 0.0;
  var mix = vec4<f32>(0.0);
  for (var block = 0u; block < num_pages; block += block_pages) {
    let count = min(block_pages, num_pages - block);
    if (thread < count) {
      let of_page = peaks[first + block + thread];
      let weight = exp(of_page.x - peak);
      weights[thread] = weight;
      sum = fma(weight, of_page.y, sum);
    }
    workgroupBarrier();
    if (slice < slices) {
      for (var page = slice; page < count; page += 8u * slices) {
//@ for s in 0..8
        let page_${s} = page + ${s}u * slices;
        let part_${s} = parts[(first + block + min(page_${s}, count - 1u)) * quads + quad];
//@ end
//@ for s in 0..8
        if (page_${s} < count) {
          mix = fma(vec4<f32>(weights[page_${s}]), part_${s}, mix);
        }
//@ end
      }
    }
    workgroupBarrier();
  }
  lanes[thread] = sum;
  mixed[thread] = mix;
  workgroupBarrier();
  for (var half = block_pages / 2u; half > 0u; half >>= 1u) {
    if (half < num_pages) {
      if (thread < half) {
        lanes[thread] += lanes[thread + half];
      }
      workgroupBarrier();
    }
  }
  if (thread < quads) {
    var total = lanes[0];
//@ for i in 0..sinks
    total += exp(sinks[group.x] - peak);
//@ end
    for (var i = 1u; i < min(slices, num_pages); i += 1u) {
      mix += mixed[i * quads + thread];
    }
    let values = mix / total;
    let column = group.x * head_dim + 4u * thread;
    let columns = num_heads * head_dim;
    for (var i = 0u; i < 4u; i += 1u) {
      let stored = select(column + i, transposed(column + i, columns), transposes != 0u);
      attended[row * columns + stored] = values[i];
    }
  }
}
