// Copies keys and values of rows between the cache and a buffer in which each row is one piece, as f16: kv_gather reads
// the cache, kv_scatter writes it. A cache of f16 keeps its bits. A cache of f32 is rounded when it is read; one of u8
// codes gets new codes when it is written, as by rope_store.wgsl.
//   @binding(0) rows    read        u32: rows.wgsl
//   @binding(1) pages   read        u32: page tables
//   @binding(2) kv      read, or read_write for kv_scatter: the cache of rope_store.wgsl
//   @binding(3) copied  read_write, or read for kv_scatter: 2×f16 a word [num_rows, k then v, num_kv_heads, head_dim]
// One workgroup a head, a thread two neighbours. Dispatch (2 * num_kv_heads, number of rows, 1).
// CPU references: rows_of_gpu_page() in web-worker/decoder/kv_rows.h, exact, and code_head() in
// tests/web-worker/decoder_twins.h.
//@ host_checked
//@ include rows.wgsl
override num_kv_heads: u32;
override head_dim: u32;       // size of a head, a multiple of 4

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> pages: array<u32>;
//@ for i in 0..gathers
//@ for i in 0..f32
@group(0) @binding(2) var<storage, read> kv: array<f32>;
//@ end
//@ for i in 0..f16
@group(0) @binding(2) var<storage, read> kv: array<u32>;
//@ end
//@ for i in 0..u8
@group(0) @binding(2) var<storage, read> kv: array<u32>;
//@ end
@group(0) @binding(3) var<storage, read_write> copied: array<u32>;
//@ end
//@ for i in 0..scatters
//@ for i in 0..f32
@group(0) @binding(2) var<storage, read_write> kv: array<f32>;
//@ end
//@ for i in 0..f16
@group(0) @binding(2) var<storage, read_write> kv: array<u32>;
//@ end
//@ for i in 0..u8
@group(0) @binding(2) var<storage, read_write> kv: array<u32>;
//@ end
@group(0) @binding(3) var<storage, read> copied: array<u32>;
//@ for i in 0..u8

var<workgroup> sums: array<f32, 64>;
//@ include store_codes.wgsl
//@ end
//@ end

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let slot = group.x;
  let row = group.y;
  let position = rows[rows_word + 4u * row + 1u];
  let page = pages[rows[rows_word + 4u * row + 2u] + position / page_tokens];
  let token = position % page_tokens;
  let is_k = slot < num_kv_heads;
  let quads = head_dim / 4u;
  let words = head_dim / 2u;
  let to = (row * 2u * num_kv_heads + slot) * words;
  // A quad of four dimensions is the unit of both layouts: keys have the token innermost.
  let first = select(token * quads, token, is_k);
  let stride = select(1u, page_tokens, is_k);
//@ for i in 0..u8
//@ for i in 0..gathers
  let base = page * 2u * num_kv_heads * page_tokens * (quads + 1u);
  let codes = base + slot * page_tokens * quads;
  let scale_zero = unpack2x16float(kv[base + (2u * num_kv_heads * quads + slot) * page_tokens + token]);
  for (var word = thread; word < words; word += 64u) {
    let code = kv[codes + first + (word / 2u) * stride] >> (16u * (word & 1u));
    let pair = vec2<f32>(vec2<u32>(code & 255u, (code >> 8u) & 255u));
    copied[to + word] = pack2x16float(fma(pair, vec2<f32>(scale_zero.x), vec2<f32>(scale_zero.y)));
  }
//@ end
//@ for i in 0..scatters
  for (var word = thread; word < words; word += 64u) {
    let pair = unpack2x16float(copied[to + word]);
    head[2u * word] = pair.x;
    head[2u * word + 1u] = pair.y;
  }
  store_codes(thread, page, slot, token, first, stride);
//@ end
//@ end
//@ for i in 0..f16
  let base = (page * 2u * num_kv_heads + slot) * page_tokens * quads;
  for (var word = thread; word < words; word += 64u) {
    let at = 2u * (base + first + (word / 2u) * stride) + (word & 1u);
//@ for i in 0..gathers
    copied[to + word] = kv[at];
//@ end
//@ for i in 0..scatters
    kv[at] = copied[to + word];
//@ end
  }
//@ end
//@ for i in 0..f32
  let base = (page * 2u * num_kv_heads + slot) * page_tokens * quads;
  for (var word = thread; word < words; word += 64u) {
    let at = 4u * (base + first + (word / 2u) * stride) + 2u * (word & 1u);
//@ for i in 0..gathers
    copied[to + word] = pack2x16float(vec2<f32>(kv[at], kv[at + 1u]));
//@ end
//@ for i in 0..scatters
    let pair = unpack2x16float(copied[to + word]);
    kv[at] = pair.x;
    kv[at + 1u] = pair.y;
//@ end
  }
//@ end
}
