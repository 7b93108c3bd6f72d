// Normalises each value head of a gated delta rule's output and multiplies it by its gate:
// attended = RMSNorm(head) * weight * silu(z)
//   @binding(0) values    read        f32 [num_rows, value_heads, value_dim]: delta_rule.wgsl
//   @binding(1) inputs    read        f32 [num_rows, input_stride]: z begins with word z_at
//   @binding(2) weight    read        f32 [value_dim]
//   @binding(3) attended  read_write  f32 [num_rows, value_heads * value_dim], rows transposed where weights are INT4
// One workgroup a head. Dispatch (value_heads, number of rows, 1).
// CPU reference: delta_gate() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include ../arithmetic.wgsl
const num_threads: u32 = 64u;
override value_heads: u32;
override value_dim: u32;
override input_stride: u32;
override z_at: u32;
override transposes: u32;
override epsilon_bits: u32;

@group(0) @binding(0) var<storage, read> values: array<f32>;
@group(0) @binding(1) var<storage, read> inputs: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> attended: array<f32>;

var<workgroup> sums: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let size = value_heads * value_dim;
  let first = group.x * value_dim;
  let row = group.y;
  var sum = 0.0;
  for (var i = thread; i < value_dim; i += num_threads) {
    let value = values[row * size + first + i];
    sum = fma(value, value, sum);
  }
  sums[thread] = sum;
  for (var reach = num_threads / 2u; reach > 0u; reach >>= 1u) {
    workgroupBarrier();
    if (thread < reach) {
      sums[thread] += sums[thread + reach];
    }
  }
  workgroupBarrier();

  let scale = 1.0 / sqrt(sums[0] / f32(value_dim) + bitcast<f32>(epsilon_bits));
  for (var i = thread; i < value_dim; i += num_threads) {
    let column = first + i;
    let z = inputs[row * input_stride + z_at + column];
    let stored = select(column, transposed(column, size), transposes != 0u);
    attended[row * size + stored] = values[row * size + column] * scale * weight[i] * z / (1.0 + exp(-z));
  }
}
