// Copies keys and values of a step's rows between the cache and a buffer in which each row is one piece: kv_gather
// reads the cache, kv_scatter writes it. The cache has f16; no bit changes.
//   @binding(0) rows    read        u32: rows.wgsl
//   @binding(1) pages   read        u32: page tables
//   @binding(2) kv      read, or read_write for kv_scatter: the cache of rope_store.wgsl, as f16
//   @binding(3) copied  read_write, or read for kv_scatter: 2×f16 a word [num_rows, k then v, num_kv_heads, head_dim]
// One workgroup a head, a thread two neighbours. Dispatch (2 * num_kv_heads, number of rows, 1).
// CPU reference: rows_of_gpu_page() in web-worker/decoder/kv_rows.h, exact.
//@ host_checked
//@ include rows.wgsl
override num_kv_heads: u32;
override head_dim: u32;       // size of a head, a multiple of 8

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> pages: array<u32>;
//@ for i in 0..gathers
@group(0) @binding(2) var<storage, read> kv: array<u32>;
@group(0) @binding(3) var<storage, read_write> copied: array<u32>;
//@ end
//@ for i in 0..scatters
@group(0) @binding(2) var<storage, read_write> kv: array<u32>;
@group(0) @binding(3) var<storage, read> copied: array<u32>;
//@ end

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let slot = group.x;
  let row = group.y;
  let position = rows[rows_word + 4u * row + 1u];
  let page = pages[rows[rows_word + 4u * row + 2u] + position / page_tokens];
  let token = position % page_tokens;
  let head_values = page_tokens * head_dim;
  let base = (page * 2u * num_kv_heads + slot) * head_values;
  let to = (row * 2u * num_kv_heads + slot) * (head_dim / 2u);
  for (var word = thread; word < head_dim / 2u; word += 64u) {
    let d = 2u * word;
    let at = select(token * head_dim + d, ((d / 4u) * page_tokens + token) * 4u + d % 4u, slot < num_kv_heads);
//@ for i in 0..gathers
    copied[to + word] = kv[(base + at) / 2u];
//@ end
//@ for i in 0..scatters
    kv[(base + at) / 2u] = copied[to + word];
//@ end
  }
}
