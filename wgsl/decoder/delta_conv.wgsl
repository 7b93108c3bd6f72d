// Convolves the inputs of a layer with a gated delta rule over the latest positions, for the rows of one sequence:
// out[row, channel] = silu(sum of weights[channel, tap] * the input at position - (taps - 1) + tap)
//   @binding(0) rows     read        u32: rows.wgsl; consecutive positions of one sequence
//   @binding(1) inputs   read        f32 [num_rows, input_stride]: the channels, then others
//   @binding(2) weights  read        f32 [channels, taps]
//   @binding(3) columns  read_write  f32 [taps - 1, channels]: the inputs before the first row, the oldest first
//   @binding(4) out      read_write  f32 [num_rows, channels]
// There is no input before position 0, where a new text begins. A thread computes all rows of one channel.
// Dispatch (ceil(channels / 64), 1, 1).
// CPU reference: delta_conv() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include rows.wgsl
override channels: u32;
override taps: u32;           // at most 8
override input_stride: u32;

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> inputs: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read_write> columns: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let channel = id.x;
  if (channel >= channels) {
    return;
  }
  let is_new = rows[rows_word + 1u] == 0u;
  let num_rows = rows[num_rows_word];
  var latest: array<f32, 8>;
  for (var tap = 0u; tap + 1u < taps; tap += 1u) {
    latest[tap] = select(columns[tap * channels + channel], 0.0, is_new);
  }
  for (var row = 0u; row < num_rows; row += 1u) {
    latest[taps - 1u] = inputs[row * input_stride + channel];
    var sum = 0.0;
    for (var tap = 0u; tap < taps; tap += 1u) {
      sum = fma(weights[channel * taps + tap], latest[tap], sum);
    }
    out[row * channels + channel] = sum / (1.0 + exp(-sum));
    for (var tap = 0u; tap + 1u < taps; tap += 1u) {
      latest[tap] = latest[tap + 1u];
    }
  }
  for (var tap = 0u; tap + 1u < taps; tap += 1u) {
    columns[tap * channels + channel] = latest[tap];
  }
}
