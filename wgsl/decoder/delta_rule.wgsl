// The gated delta rule, row by row, for the rows of one sequence. With a value head's matrix S, the key and the query
// of its key head divided by their lengths, and the query also by sqrt(key_dim):
//   S <- e^g S;  d = beta * (v - S^T k);  S <- S + k d^T;  out = S^T q
//   g = -exp(a_log) * softplus(a + dt_bias), beta = sigmoid(b)
//   @binding(0) rows     read        u32: rows.wgsl; consecutive positions of one sequence
//   @binding(1) mixed    read        f32 [num_rows, channels]: queries, keys, values (delta_conv.wgsl)
//   @binding(2) gates    read        f32 [num_rows, 2, value_heads]: b, then a
//   @binding(3) a_log    read        f32 [value_heads]
//   @binding(4) dt_bias  read        f32 [value_heads]
//   @binding(5) state    read_write  f32 [value_heads, key_dim, value_dim]: S
//   @binding(6) out      read_write  f32 [num_rows, value_heads, value_dim]
// S is zero before position 0, where a new text begins. One workgroup for 64 columns of a head's S, a thread for each.
// Dispatch (value_heads, ceil(value_dim / 64), 1).
// CPU reference: delta_rule() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-5.
//@ host_checked
//@ include rows.wgsl
const num_threads: u32 = 64u;
override key_heads: u32;
override value_heads: u32;
override key_dim: u32;     // at most 256
override value_dim: u32;

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> mixed: array<f32>;
@group(0) @binding(2) var<storage, read> gates: array<f32>;
@group(0) @binding(3) var<storage, read> a_log: array<f32>;
@group(0) @binding(4) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> state: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

const length_eps: f32 = 1e-6;
var<workgroup> queries: array<f32, 256>;
var<workgroup> keys: array<f32, 256>;
var<workgroup> query_squares: array<f32, 64>;
var<workgroup> key_squares: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = group.x;
  let column = group.y * num_threads + thread;
  let all_keys = key_heads * key_dim;
  let channels = 2u * all_keys + value_heads * value_dim;
  let key_at = head / (value_heads / key_heads) * key_dim;
  let rate = -exp(a_log[head]);
  let num_rows = rows[num_rows_word];
  let first_position = rows[rows_word + 1u];

  for (var row = 0u; row < num_rows; row += 1u) {
    var query_square = 0.0;
    var key_square = 0.0;
    for (var i = thread; i < key_dim; i += num_threads) {
      let query = mixed[row * channels + key_at + i];
      let key = mixed[row * channels + all_keys + key_at + i];
      queries[i] = query;
      keys[i] = key;
      query_square = fma(query, query, query_square);
      key_square = fma(key, key, key_square);
    }
    query_squares[thread] = query_square;
    key_squares[thread] = key_square;
    for (var reach = num_threads / 2u; reach > 0u; reach >>= 1u) {
      workgroupBarrier();
      if (thread < reach) {
        query_squares[thread] += query_squares[thread + reach];
        key_squares[thread] += key_squares[thread + reach];
      }
    }
    workgroupBarrier();

    let query_scale = 1.0 / (sqrt(query_squares[0] + length_eps) * sqrt(f32(key_dim)));
    let key_scale = 1.0 / sqrt(key_squares[0] + length_eps);
    let input = gates[(2u * row + 1u) * value_heads + head] + dt_bias[head];
    let decay = exp(rate * select(log(1.0 + exp(min(input, 20.0))), input, input > 20.0));
    let beta = 1.0 / (1.0 + exp(-gates[2u * row * value_heads + head]));
    let is_new = first_position + row == 0u;
    if (column < value_dim) {
      let at = head * key_dim * value_dim + column;
      var recalled = 0.0;
      for (var i = 0u; i < key_dim; i += 1u) {
        recalled = fma(select(state[at + i * value_dim], 0.0, is_new), keys[i], recalled);
      }
      let value = mixed[row * channels + 2u * all_keys + head * value_dim + column];
      let change = beta * (value - decay * key_scale * recalled) * key_scale;
      var sum = 0.0;
      for (var i = 0u; i < key_dim; i += 1u) {
        let one = fma(decay, select(state[at + i * value_dim], 0.0, is_new), keys[i] * change);
        state[at + i * value_dim] = one;
        sum = fma(one, queries[i], sum);
      }
      out[(row * value_heads + head) * value_dim + column] = sum * query_scale;
    }
    workgroupBarrier();
  }
}
