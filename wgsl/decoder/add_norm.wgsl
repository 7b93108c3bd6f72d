// Adds the output of the previous block to the residual stream, and normalises it as input of the next block:
// x += factor * addends, then y = RMSNorm(x) * weight.
//   @binding(0) rows          read        u32: rows.wgsl
//   @binding(1) x             read_write  f32 [num_rows, hidden_size]
//   @binding(2) addends       read        f32 [num_rows, num_addends, hidden_size], added from the first to the last
//   @binding(3) weight        read        f32 [hidden_size]
//   @binding(4) y             read_write  f32 [num_rows, hidden_size]
//   @binding(5) y_transposed  read_write  f32, the same with its rows transposed, for INT4 weights
//   @binding(6) shared_rows   read        f32 [num_rows, hidden_size]; only with `shared`: added behind the addends
// If for_head is 1, only the rows from head_row on are computed (the rows with logits), and y begins with head_row.
// One workgroup a row. Dispatch (1, number of rows, 1).
// CPU reference: add_norm() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include rows.wgsl
//@ include ../arithmetic.wgsl
override hidden_size: u32;
override num_addends: u32;
override for_head: u32;
override epsilon_bits: u32;
override factor_bits: u32;   // f32 bits; 1.0 for most models, and the sum then has the bits of x + addends

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> addends: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> y_transposed: array<vec4<f32>>;
//@ for i in 0..shared
@group(0) @binding(6) var<storage, read> shared_rows: array<vec4<f32>>;
//@ end

var<workgroup> sums: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y + for_head * rows[head_row_word];

  let quads = hidden_size / 4u;
  let factor = vec4<f32>(bitcast<f32>(factor_bits));
  var sum = 0.0;
  // Each thread keeps its first four quads of x and of weight in registers: all of its quads if a row has at most
  // 4,096 values.
//@ for k in 0..4
  var kept_${k} = vec4<f32>(0.0);
  var by_${k} = vec4<f32>(0.0);
  if (thread + ${k}u * 256u < quads) {
    kept_${k} = x[row * quads + thread + ${k}u * 256u];
    by_${k} = weight[thread + ${k}u * 256u];
  }
//@ end
  for (var a = 0u; a < num_addends; a += 1u) {
//@ for k in 0..4
    if (thread + ${k}u * 256u < quads) {
      let addend_${k} = addends[(row * num_addends + a) * quads + thread + ${k}u * 256u];
      kept_${k} = fma(factor, addend_${k}, kept_${k});
    }
//@ end
  }
//@ for i in 0..shared
//@ for k in 0..4
  if (thread + ${k}u * 256u < quads) {
    kept_${k} = fma(factor, shared_rows[row * quads + thread + ${k}u * 256u], kept_${k});
  }
//@ end
//@ end
//@ for k in 0..4
  if (thread + ${k}u * 256u < quads) {
    x[row * quads + thread + ${k}u * 256u] = kept_${k};
    sum = add_dot(kept_${k}, kept_${k}, sum);
  }
//@ end
  for (var i = thread + 1024u; i < quads; i += 256u) {
    var value = x[row * quads + i];
    for (var a = 0u; a < num_addends; a += 1u) {
      value = fma(factor, addends[(row * num_addends + a) * quads + i], value);
    }
//@ for i in 0..shared
    value = fma(factor, shared_rows[row * quads + i], value);
//@ end
    x[row * quads + i] = value;
    sum = add_dot(value, value, sum);
  }
  sums[thread] = sum;
  for (var stride = 128u; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (thread < stride) {
      sums[thread] += sums[thread + stride];
    }
  }
  workgroupBarrier();

  let scale = 1.0 / sqrt(sums[0] / f32(hidden_size) + bitcast<f32>(epsilon_bits));
//@ for k in 0..4
  if (thread + ${k}u * 256u < quads) {
    let value = kept_${k} * scale * by_${k};
    let i = thread + ${k}u * 256u;
    y[group.y * quads + i] = value;
    y_transposed[group.y * quads + transposed(4u * i, hidden_size) / 4u] = value;
  }
//@ end
  for (var i = thread + 1024u; i < quads; i += 256u) {
    let value = x[row * quads + i] * scale * weight[i];
    y[group.y * quads + i] = value;
    y_transposed[group.y * quads + transposed(4u * i, hidden_size) / 4u] = value;
  }
}
