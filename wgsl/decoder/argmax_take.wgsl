// Writes the likeliest token of the whole vocabulary as the only row of the next step, one position later, and appends
// it to the ring that the host reads every few steps. All data that the next step needs from this one is thus already
// on the GPU.
//   @binding(0) best  read        u32 [num_stretches, 2]: argmax_part.wgsl
//   @binding(1) rows  read_write  u32: rows.wgsl
//   @binding(2) ids   read_write  u32 [ring_ids]
// Dispatch (1, 1, 1).
// CPU reference: argmax() in tests/web-worker/decoder_twins.h, exact.
//@ host_checked
//@ include rows.wgsl
override num_stretches: u32;
override ring_ids: u32;
override vocab_size: u32;
override row_pages: u32;   // limit of pages of one sequence

@group(0) @binding(0) var<storage, read> best: array<u32>;
@group(0) @binding(1) var<storage, read_write> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;

//@ include argmax.wgsl

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
  var value = -3.4028234e38;
  var token = vocab_size;
  for (var i = thread; i < num_stretches; i += 256u) {
    if (bitcast<f32>(best[2u * i]) > value || token == vocab_size) {
      value = bitcast<f32>(best[2u * i]);
      token = best[2u * i + 1u];
    }
  }
  reduce_best(thread, value, token);

  if (thread == 0u) {
    let chosen = min(best_tokens[0], vocab_size - 1u);
    let last = rows_word + 4u * rows[head_row_word];
    let position = rows[last + 1u] + 1u;
    let first_page = rows[last + 2u];
    let count = rows[chosen_word];

    ids[count % ring_ids] = chosen;
    rows[num_rows_word] = 1u;
    rows[chosen_word] = count + 1u;
    rows[head_row_word] = 0u;
    rows[part_pages_word] = row_pages;
    rows[rows_word] = chosen;
    rows[rows_word + 1u] = position;
    rows[rows_word + 2u] = first_page;
  }
}
