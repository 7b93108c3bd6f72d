// Computes q and the cache's newest keys and values from the projections: RMSNorm of each head of q and k, or of all
// heads together, if the model has it; rotary embedding ("rotate_half") of a head's first rotary_size elements; and
// stores k and v in their page.
//   @binding(0) rows     read        u32: rows.wgsl
//   @binding(1) qkv      read        f32 [num_rows, num_heads + 2 * num_kv_heads, head_dim]: q, then k, then v
//   @binding(2) norms    read        f32 [2, head_dim]: for q, for k; or [num_heads + num_kv_heads, head_dim] if
//                                    norms_all_heads; not read unless has_qk_norm
//   @binding(3) cos_sin  read        f32 [positions, rotary_size]: cosines, then sines
//   @binding(4) pages    read        u32: page tables
//   @binding(5) q        read_write  f32 [num_rows, num_heads, head_dim]
//   @binding(6) kv       read_write  f32, or 2×f16 a word, [num_pages, k then v, num_kv_heads, page_tokens, head_dim],
//                                    a page's keys with the token innermost: four dimensions of 128 tokens, then the
//                                    next four
//                                    u8: codes in that order, four a word, then 2×f16 a word [k then v, num_kv_heads,
//                                    page_tokens]: scale and zero; a value is zero + scale * code
// One workgroup a head, a thread two neighbours. Dispatch (num_heads + 2 * num_kv_heads, number of rows, 1).
// CPU references: rope() and code_head() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-6. In u8, the
// zero is the least value and the scale is 1/255 of the range, both rounded to f16; the error is half a code step plus
// the f16 rounding.
//@ host_checked
//@ include rows.wgsl
override num_heads: u32;
override num_kv_heads: u32;
override head_dim: u32;       // size of a head, a multiple of 4
override rotary_size: u32;    // elements of a head that are rotated, a multiple of 4
override has_qk_norm: u32;
override norms_all_heads: u32;   // 1: one norm over all heads of q, and one over those of k
override epsilon_bits: u32;

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> norms: array<f32>;
@group(0) @binding(3) var<storage, read> cos_sin: array<f32>;
@group(0) @binding(4) var<storage, read> pages: array<u32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;
//@ for i in 0..f32
@group(0) @binding(6) var<storage, read_write> kv: array<f32>;
//@ end
//@ for i in 0..f16
@group(0) @binding(6) var<storage, read_write> kv: array<u32>;
//@ end
//@ for i in 0..u8
@group(0) @binding(6) var<storage, read_write> kv: array<u32>;
//@ end

var<workgroup> sums: array<f32, 64>;
//@ for i in 0..u8
//@ include store_codes.wgsl
//@ end

//@ for i in 0..wide
// Stores two neighbouring values; the index of the first is even.
fn store_kv(at: u32, pair: vec2<f32>) {
//@ for i in 0..f32
  kv[at] = pair.x;
  kv[at + 1u] = pair.y;
//@ end
//@ for i in 0..f16
  kv[at / 2u] = pack2x16float(pair);
//@ end
}
//@ end

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let slot = group.x;
  let row = group.y;
  let position = rows[rows_word + 4u * row + 1u];
  let page = pages[rows[rows_word + 4u * row + 2u] + position / page_tokens];
  let token = position % page_tokens;
  let source = (row * (num_heads + 2u * num_kv_heads) + slot) * head_dim;
//@ for i in 0..wide
  let head_floats = page_tokens * head_dim;
  let page_floats = 2u * num_kv_heads * head_floats;
//@ end
  let is_k = slot >= num_heads;

  if (slot >= num_heads + num_kv_heads) {
//@ for i in 0..u8
    for (var d = thread; d < head_dim; d += 64u) {
      head[d] = qkv[source + d];
    }
    store_codes(thread, page, slot - num_heads, token, token * (head_dim / 4u), 1u);
//@ end
//@ for i in 0..wide
    let to = page * page_floats + (slot - num_heads) * head_floats + token * head_dim;   // v follows k
    for (var d = 2u * thread; d < head_dim; d += 128u) {
      store_kv(to + d, vec2<f32>(qkv[source + d], qkv[source + d + 1u]));
    }
//@ end
    return;
  }

  // The values under the norm of this head: its own, or those of all heads of q or of k.
  var normed = source;
  var normed_size = head_dim;
  if (norms_all_heads != 0u) {
    normed = (row * (num_heads + 2u * num_kv_heads) + select(0u, num_heads, is_k)) * head_dim;
    normed_size = select(num_heads, num_kv_heads, is_k) * head_dim;
  }
  var sum = 0.0;
  for (var d = thread; d < normed_size; d += 64u) {
    sum = fma(qkv[normed + d], qkv[normed + d], sum);
  }
  sums[thread] = sum;
  for (var stride = 32u; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (thread < stride) {
      sums[thread] += sums[thread + stride];
    }
  }
  workgroupBarrier();
  let scale = 1.0 / sqrt(sums[0] / f32(normed_size) + bitcast<f32>(epsilon_bits));
  let first_norm = select(select(0u, head_dim, is_k), slot * head_dim, norms_all_heads != 0u);

  let half_size = rotary_size / 2u;
  for (var d = 2u * thread; d < half_size; d += 128u) {
    let e = d + half_size;
    var a = vec2<f32>(qkv[source + d], qkv[source + d + 1u]);
    var b = vec2<f32>(qkv[source + e], qkv[source + e + 1u]);
    if (has_qk_norm != 0u) {
      let norm = first_norm + d;
      a = a * scale * vec2<f32>(norms[norm], norms[norm + 1u]);
      b = b * scale * vec2<f32>(norms[norm + half_size], norms[norm + half_size + 1u]);
    }
    let angle = position * rotary_size + d;
    let cosine = vec2<f32>(cos_sin[angle], cos_sin[angle + 1u]);
    let sine = vec2<f32>(cos_sin[angle + half_size], cos_sin[angle + half_size + 1u]);
    let turned_a = a * cosine - b * sine;
    let turned_b = b * cosine + a * sine;

    if (is_k) {
//@ for i in 0..wide
      let to = page * page_floats + (slot - num_heads) * head_floats;
      store_kv(to + ((d / 4u) * page_tokens + token) * 4u + d % 4u, turned_a);
      store_kv(to + ((e / 4u) * page_tokens + token) * 4u + e % 4u, turned_b);
//@ end
//@ for i in 0..u8
      head[d] = turned_a.x;
      head[d + 1u] = turned_a.y;
      head[e] = turned_b.x;
      head[e + 1u] = turned_b.y;
//@ end
    } else {
      let to = (row * num_heads + slot) * head_dim;
      q[to + d] = turned_a.x;
      q[to + d + 1u] = turned_a.y;
      q[to + e] = turned_b.x;
      q[to + e + 1u] = turned_b.y;
    }
  }
  // Elements behind the rotated ones keep their direction.
  for (var d = rotary_size + 2u * thread; d < head_dim; d += 128u) {
    var pair = vec2<f32>(qkv[source + d], qkv[source + d + 1u]);
    if (has_qk_norm != 0u) {
      pair = pair * scale * vec2<f32>(norms[first_norm + d], norms[first_norm + d + 1u]);
    }
    if (is_k) {
//@ for i in 0..wide
      let to = page * page_floats + (slot - num_heads) * head_floats;
      store_kv(to + ((d / 4u) * page_tokens + token) * 4u + d % 4u, pair);
//@ end
//@ for i in 0..u8
      head[d] = pair.x;
      head[d + 1u] = pair.y;
//@ end
    } else {
      let to = (row * num_heads + slot) * head_dim;
      q[to + d] = pair.x;
      q[to + d + 1u] = pair.y;
    }
  }
//@ for i in 0..u8
  if (is_k) {
    store_codes(thread, page, slot - num_heads, token, token, page_tokens);
  }
//@ end
}
