// Convolves the inputs of a layer with a gated delta rule over the latest positions:
// out[row, channel] = silu(sum of weights[channel, tap] * the input at position - (taps - 1) + tap)
//   @binding(0) rows     read        u32: rows.wgsl; consecutive positions of one sequence
//   @binding(1) inputs   read        f32 [num_rows, input_stride]: the channels, then others
//   @binding(2) weights  read        f32 [channels, taps]
//   @binding(3) columns  read_write  f32 [taps - 1, channels]: the inputs before the first row, the oldest first
//   @binding(4) out      read_write  f32 [num_rows, channels]
// There is no input before position 0, where a new text begins. A thread computes all rows of one channel.
// Dispatch (ceil(channels / 64), 1, 1).
// With `several`, the rows are those of several sequences (delta_runs.wgsl). A thread computes one channel of a run:
//   @binding(0) runs     read        u32: delta_runs.wgsl
//   @binding(3) columns  read_write  f32 [slots, taps - 1, channels]
//   @binding(4) out      read_write  f32 [rows of all runs, channels]
//   @binding(5) journal  read_write  f32 [journals, journal_rows, channels + 2 * value_heads]
// Dispatch (ceil(channels / 64), number of runs, 1).
// CPU reference: delta_conv() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ for i in 0..single
//@ include rows.wgsl
//@ end
//@ for i in 0..several
//@ include delta_runs.wgsl
override value_heads: u32;
//@ end
override channels: u32;
override taps: u32;           // at most 8
override input_stride: u32;

//@ for i in 0..single
@group(0) @binding(0) var<storage, read> rows: array<u32>;
//@ end
//@ for i in 0..several
@group(0) @binding(0) var<storage, read> runs: array<u32>;
//@ end
@group(0) @binding(1) var<storage, read> inputs: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read_write> columns: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
//@ for i in 0..several
@group(0) @binding(5) var<storage, read_write> journal: array<f32>;
//@ end

@compute @workgroup_size(64)
//@ for i in 0..single
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
//@ end
//@ for i in 0..several
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
//@ end
  let channel = id.x;
  if (channel >= channels) {
    return;
  }
//@ for i in 0..single
  let is_new = rows[rows_word + 1u] == 0u;
  let num_rows = rows[num_rows_word];
//@ end
//@ for i in 0..several
  let run = run_words * group.y;
  let from_slot = runs[run + from_slot_word];
  let num_replayed = runs[run + num_replayed_word];
  let num_rows = num_replayed + runs[run + num_rows_word];
  let mixed_at = runs[run + mixed_at_word];
//@ end
  var latest: array<f32, 8>;
  for (var tap = 0u; tap + 1u < taps; tap += 1u) {
//@ for i in 0..single
    latest[tap] = select(columns[tap * channels + channel], 0.0, is_new);
//@ end
//@ for i in 0..several
    latest[tap] = 0.0;
    if (from_slot != no_slot) {
      latest[tap] = columns[(from_slot * (taps - 1u) + tap) * channels + channel];
    }
//@ end
  }
  for (var row = 0u; row < num_rows; row += 1u) {
//@ for i in 0..single
    latest[taps - 1u] = inputs[row * input_stride + channel];
//@ end
//@ for i in 0..several
    let kept_at = journal_row(run, row) * (channels + 2u * value_heads) + channel;
    if (row < num_replayed) {
      latest[taps - 1u] = journal[kept_at];
    } else {
      latest[taps - 1u] = inputs[step_row(run, row - num_replayed) * input_stride + channel];
      if (runs[run + keeps_rows_word] != 0u) {
        journal[kept_at] = latest[taps - 1u];
      }
    }
//@ end
    var sum = 0.0;
    for (var tap = 0u; tap < taps; tap += 1u) {
      sum = fma(weights[channel * taps + tap], latest[tap], sum);
    }
//@ for i in 0..single
    out[row * channels + channel] = sum / (1.0 + exp(-sum));
//@ end
//@ for i in 0..several
    out[(mixed_at + row) * channels + channel] = sum / (1.0 + exp(-sum));
//@ end
    for (var tap = 0u; tap + 1u < taps; tap += 1u) {
      latest[tap] = latest[tap + 1u];
    }
//@ for i in 0..several
//@ for place in 0..2
    if (row + 1u == runs[run + store_after_word + ${place}u]) {
      let slot = runs[run + to_slot_word + ${place}u];
      for (var tap = 0u; tap + 1u < taps; tap += 1u) {
        columns[(slot * (taps - 1u) + tap) * channels + channel] = latest[tap];
      }
    }
//@ end
//@ end
  }
//@ for i in 0..single
  for (var tap = 0u; tap + 1u < taps; tap += 1u) {
    columns[tap * channels + channel] = latest[tap];
  }
//@ end
}
