// Copies what a layer with a gated delta rule keeps of a step's rows, rounded to f16: the inputs of its convolution,
// then b and a of each value head. Values beyond the largest f16 become that.
//   @binding(0) inputs  read        f32 [num_rows, input_stride]: the channels, then others
//   @binding(1) gates   read        f32 [num_rows, 2, value_heads]: b, then a
//   @binding(2) kept    read_write  2×f16 a word [num_rows, channels + 2 * value_heads]
// A thread packs two neighbours. Dispatch (ceil((channels / 2 + value_heads) / 64), number of rows, 1).
// CPU reference: float_to_half() in tests/web-worker/decoder_kernels_test.cpp, exact.
//@ host_checked
override channels: u32;       // even
override value_heads: u32;
override input_stride: u32;

@group(0) @binding(0) var<storage, read> inputs: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read_write> kept: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let words = channels / 2u + value_heads;
  if (id.x >= words) {
    return;
  }
  let first = 2u * id.x;
  var pair = vec2<f32>();
  if (first < channels) {
    let at = id.y * input_stride + first;
    pair = vec2<f32>(inputs[at], inputs[at + 1u]);
  } else {
    let at = id.y * 2u * value_heads + first - channels;
    pair = vec2<f32>(gates[at], gates[at + 1u]);
  }
  kept[id.y * words + id.x] = pack2x16float(clamp(pair, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}
