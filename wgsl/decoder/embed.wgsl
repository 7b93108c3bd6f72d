// Looks up the embeddings of a step's tokens: x[row] = factor * table[token], for the tokens of one shard of the table.
//   @binding(0) rows   read        u32: rows.wgsl
//   @binding(1) table  read        u32: rows of bf16, f32, or INT4 codes and then scales and zeros
//   @binding(2) x      read_write  f32 [num_rows, hidden_size]
//   @binding(3) shard  uniform     TableShard in web-worker/decoder/step_rows.h, 16 bytes
// Dispatch (ceil(hidden_size / 64), number of rows, 1).
// CPU reference: embed() in tests/web-worker/decoder_twins.h, exact.
//@ host_checked
//@ include rows.wgsl
override hidden_size: u32;
override factor_bits: u32;   // f32 bits; 1.0 for most models
//@ for i in 0..int4
override group_size: u32;
//@ end

struct TableShard { first_token: u32, num_tokens: u32, scale_zero_word: u32, unused: u32 }

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
@group(0) @binding(3) var<uniform> shard: TableShard;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let token = rows[rows_word + 4u * id.y] - shard.first_token;   // wraps around for a token of an earlier shard
  if (id.x >= hidden_size || token >= shard.num_tokens) {
    return;
  }

//@ for i in 0..bf16
  let word = table[(token * hidden_size + id.x) / 2u];
  let value = bitcast<f32>(select(word << 16u, word & 0xffff0000u, (id.x & 1u) == 1u));
//@ end
//@ for i in 0..f32
  let value = bitcast<f32>(table[token * hidden_size + id.x]);
//@ end
//@ for i in 0..int4
  let code = (table[(token * hidden_size + id.x) / 8u] >> (4u * (id.x & 7u))) & 15u;
  let at = token * (hidden_size / group_size) + id.x / group_size;
  let scale_zero = unpack2x16float(table[shard.scale_zero_word + at]);
  let value = scale_zero.x * (f32(code) - scale_zero.y);
//@ end
  x[id.y * hidden_size + id.x] = bitcast<f32>(factor_bits) * value;
}
