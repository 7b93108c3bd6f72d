// The gated delta rule, row by row. With a value head's matrix S, the key and the query of its key head divided by
// their lengths, and the query also by sqrt(key_dim):
//   S <- e^g S;  d = beta * (v - S^T k);  S <- S + k d^T;  out = S^T q
//   g = -exp(a_log) * softplus(a + dt_bias), beta = sigmoid(b)
//   @binding(0) rows     read        u32: rows.wgsl; consecutive positions of one sequence
//   @binding(1) mixed    read        f32 [num_rows, channels]: queries, keys, values (delta_conv.wgsl)
//   @binding(2) gates    read        f32 [num_rows, 2, value_heads]: b, then a
//   @binding(3) a_log    read        f32 [value_heads]
//   @binding(4) dt_bias  read        f32 [value_heads]
//   @binding(5) state    read_write  f32 [value_heads, key_dim, value_dim]: S
//   @binding(6) out      read_write  f32 [num_rows, value_heads, value_dim]
// S is zero before position 0, where a new text begins. A thread keeps key_rows rows of one column of S in registers
// over all rows of the step, so that S is read and written once. With parts = ceil(key_dim / key_rows), a workgroup has
// num_threads / parts columns of a head: 16 where key_dim is 128.
// Dispatch (value_heads, ceil(value_dim / (num_threads / parts)), 1).
// With `several`, the rows are those of several sequences (delta_runs.wgsl), each with the same sums:
//   @binding(0) runs     read        u32: delta_runs.wgsl
//   @binding(1) mixed    read        f32 [rows of all runs, channels]
//   @binding(5) state    read_write  f32 [slots, value_heads, key_dim, value_dim]
//   @binding(7) journal  read_write  f32 [journals, journal_rows, channels + 2 * value_heads]: inputs of the
//                                    convolution, then b and a
// Dispatch (value_heads, ceil(value_dim / (num_threads / parts)), number of runs).
// CPU reference: delta_rule() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-5.
//@ host_checked
//@ for i in 0..single
//@ include rows.wgsl
//@ end
//@ for i in 0..several
//@ include delta_runs.wgsl
//@ end
const num_threads: u32 = 128u;
const key_rows: u32 = 16u;
override key_heads: u32;
override value_heads: u32;
override key_dim: u32;     // at most 256
override value_dim: u32;

//@ for i in 0..single
@group(0) @binding(0) var<storage, read> rows: array<u32>;
//@ end
//@ for i in 0..several
@group(0) @binding(0) var<storage, read> runs: array<u32>;
//@ end
@group(0) @binding(1) var<storage, read> mixed: array<f32>;
@group(0) @binding(2) var<storage, read> gates: array<f32>;
@group(0) @binding(3) var<storage, read> a_log: array<f32>;
@group(0) @binding(4) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> state: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
//@ for i in 0..several
@group(0) @binding(7) var<storage, read_write> journal: array<f32>;
//@ end

const length_eps: f32 = 1e-6;
var<workgroup> recalled_parts: array<f32, 128>;
var<workgroup> sum_parts: array<f32, 128>;
var<workgroup> square_parts: array<vec2<f32>, 16>;  // of the query and of the key

// Returns true if every thread has all of its rows of S, so that no load and no store needs a condition. A constant of
// the pipeline.
fn is_whole() -> bool {
  let parts = (key_dim + key_rows - 1u) / key_rows;
  return key_dim % key_rows == 0u && num_threads % parts == 0u && value_dim % (num_threads / parts) == 0u;
}
// Returns four values of a query or a key from `at` on; zeros behind its end, which is `left` values away. A load
// behind a branch waits for the one before it, so that all four are made; for no value, the first one is loaded.
fn mixed4(at: u32, left: u32) -> vec4<f32> {
  if (is_whole()) {
    return vec4<f32>(mixed[at], mixed[at + 1u], mixed[at + 2u], mixed[at + 3u]);
  }
  let is_there = vec4<u32>(left) > vec4<u32>(0u, 1u, 2u, 3u);
  let place = select(vec4<u32>(), vec4<u32>(at) + vec4<u32>(0u, 1u, 2u, 3u), is_there);
  return select(vec4<f32>(), vec4<f32>(mixed[place.x], mixed[place.y], mixed[place.z], mixed[place.w]), is_there);
}
// Four rows of a column of S.
fn state4(at: u32, left: u32) -> vec4<f32> {
  if (is_whole()) {
    return vec4<f32>(state[at], state[at + value_dim], state[at + 2u * value_dim], state[at + 3u * value_dim]);
  }
  let is_there = vec4<u32>(left) > vec4<u32>(0u, 1u, 2u, 3u);
  let place = select(vec4<u32>(), vec4<u32>(at) + value_dim * vec4<u32>(0u, 1u, 2u, 3u), is_there);
  return select(vec4<f32>(), vec4<f32>(state[place.x], state[place.y], state[place.z], state[place.w]), is_there);
}
fn store4(at: u32, left: u32, four: vec4<f32>) {
  if (left > 0u || is_whole()) { state[at] = four.x; }
  if (left > 1u || is_whole()) { state[at + value_dim] = four.y; }
  if (left > 2u || is_whole()) { state[at + 2u * value_dim] = four.z; }
  if (left > 3u || is_whole()) { state[at + 3u * value_dim] = four.w; }
}
fn product16(a: mat4x4<f32>, b: mat4x4<f32>) -> f32 {
  let sums = fma(a[3], b[3], fma(a[2], b[2], fma(a[1], b[1], a[0] * b[0])));
  return (sums.x + sums.y) + (sums.z + sums.w);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let parts = (key_dim + key_rows - 1u) / key_rows;
  let columns = num_threads / parts;
  let part = thread / columns;
  let column_here = thread % columns;
  let column = group.y * columns + column_here;
  let is_used = part < parts && column < value_dim;
  let first_key = part * key_rows;
  // Numbers of rows of S from each of this thread's four rows on; 0: none.
  let keys_left = select(0u, key_dim - min(key_dim, first_key), is_used);
  let left = vec4<u32>(keys_left, max(keys_left, 4u) - 4u, max(keys_left, 8u) - 8u, max(keys_left, 12u) - 12u);

  let head = group.x;
  let all_keys = key_heads * key_dim;
  let channels = 2u * all_keys + value_heads * value_dim;
  let key_at = head / (value_heads / key_heads) * key_dim + first_key;
  let rate = -exp(a_log[head]);
//@ for i in 0..single
  let num_rows = rows[num_rows_word];
  let first_position = rows[rows_word + 1u];

  let at = (head * key_dim + first_key) * value_dim + column;
//@ end
//@ for i in 0..several
  let run = run_words * group.z;
  let from_slot = runs[run + from_slot_word];
  let num_replayed = runs[run + num_replayed_word];
  let num_rows = num_replayed + runs[run + num_rows_word];
  let mixed_at = runs[run + mixed_at_word];
  let is_first = group.y == 0u && thread == 0u;

  let slot_size = value_heads * key_dim * value_dim;
  let at_in_slot = (head * key_dim + first_key) * value_dim + column;
  let at = from_slot * slot_size + at_in_slot;
//@ end
  let stride = 4u * value_dim;
  var s = mat4x4<f32>();
//@ for i in 0..single
  if (first_position > 0u) {
//@ end
//@ for i in 0..several
  if (from_slot != no_slot) {
//@ end
    s = mat4x4<f32>(state4(at, left.x), state4(at + stride, left.y), state4(at + 2u * stride, left.z),
                    state4(at + 3u * stride, left.w));
  }
  for (var row = 0u; row < num_rows; row += 1u) {
//@ for i in 0..single
    let query_at = row * channels + key_at;
//@ end
//@ for i in 0..several
    let query_at = (mixed_at + row) * channels + key_at;
//@ end
    let query = mat4x4<f32>(mixed4(query_at, left.x), mixed4(query_at + 4u, left.y), mixed4(query_at + 8u, left.z),
                            mixed4(query_at + 12u, left.w));
    let keys_at = query_at + all_keys;
    let key = mat4x4<f32>(mixed4(keys_at, left.x), mixed4(keys_at + 4u, left.y), mixed4(keys_at + 8u, left.z),
                          mixed4(keys_at + 12u, left.w));
//@ for i in 0..single
    let input = gates[(2u * row + 1u) * value_heads + head] + dt_bias[head];
    let decay = exp(rate * select(log(1.0 + exp(min(input, 20.0))), input, input > 20.0));
    let beta = 1.0 / (1.0 + exp(-gates[2u * row * value_heads + head]));
//@ end
//@ for i in 0..several
    let kept_at = journal_row(run, row) * (channels + 2u * value_heads) + channels + head;
    var b = 0.0;
    var a = 0.0;
    if (row < num_replayed) {
      b = journal[kept_at];
      a = journal[kept_at + value_heads];
    } else {
      let gates_at = 2u * step_row(run, row - num_replayed) * value_heads + head;
      b = gates[gates_at];
      a = gates[gates_at + value_heads];
      if (is_first && runs[run + keeps_rows_word] != 0u) {
        journal[kept_at] = b;
        journal[kept_at + value_heads] = a;
      }
    }
    let input = a + dt_bias[head];
    let decay = exp(rate * select(log(1.0 + exp(min(input, 20.0))), input, input > 20.0));
    let beta = 1.0 / (1.0 + exp(-b));
//@ end
    var value = 0.0;
    if (is_used || is_whole()) {
//@ for i in 0..single
      value = mixed[row * channels + 2u * all_keys + head * value_dim + column];
//@ end
//@ for i in 0..several
      value = mixed[(mixed_at + row) * channels + 2u * all_keys + head * value_dim + column];
//@ end
    }
    recalled_parts[thread] = product16(s, key);
    if (column_here == 0u && part < parts) {
      square_parts[part] = vec2<f32>(product16(query, query), product16(key, key));
    }
    workgroupBarrier();

    var recalled = 0.0;
    var squares = vec2<f32>();
    for (var i = 0u; i < parts; i += 1u) {
      recalled += recalled_parts[i * columns + column_here];
      squares += square_parts[i];
    }
    let query_scale = 1.0 / (sqrt(squares.x + length_eps) * sqrt(f32(key_dim)));
    let key_scale = 1.0 / sqrt(squares.y + length_eps);
    let change = beta * (value - decay * key_scale * recalled) * key_scale;
    s = decay * s + change * key;
    sum_parts[thread] = product16(s, query);
    workgroupBarrier();

//@ for i in 0..single
    if (part == 0u && is_used) {
//@ end
//@ for i in 0..several
    if (part == 0u && is_used && row >= num_replayed) {
//@ end
      var sum = 0.0;
      for (var i = 0u; i < parts; i += 1u) {
        sum += sum_parts[i * columns + column_here];
      }
//@ for i in 0..single
      out[(row * value_heads + head) * value_dim + column] = sum * query_scale;
//@ end
//@ for i in 0..several
      out[(step_row(run, row - num_replayed) * value_heads + head) * value_dim + column] = sum * query_scale;
//@ end
    }
//@ for i in 0..several
//@ for place in 0..2
    if (row + 1u == runs[run + store_after_word + ${place}u]) {
      let to = runs[run + to_slot_word + ${place}u] * slot_size + at_in_slot;
      store4(to, left.x, s[0]);
      store4(to + stride, left.y, s[1]);
      store4(to + 2u * stride, left.z, s[2]);
      store4(to + 3u * stride, left.w, s[3]);
    }
//@ end
//@ end
  }
//@ for i in 0..single
  store4(at, left.x, s[0]);
  store4(at + stride, left.y, s[1]);
  store4(at + 2u * stride, left.z, s[2]);
  store4(at + 3u * stride, left.w, s[3]);
//@ end
}
