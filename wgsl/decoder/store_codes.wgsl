// Stores the values of a head in the cache as u8 codes, whose layout rope_store.wgsl describes. The workgroup has 64
// threads; the kernel has the overrides num_kv_heads and head_dim, the cache `kv` and the array `sums`.
var<workgroup> peaks: array<f32, 64>;
var<workgroup> head: array<f32, 256>;   // values that store_codes() stores as codes

// Stores the values of one head as u8 codes, with all threads of the workgroup. `slot` is the head's index among keys,
// then values; `stride` is the number of words from one quad of a token's codes to the next.
fn store_codes(thread: u32, page: u32, slot: u32, token: u32, first: u32, stride: u32) {
  let f16_max = 65504.0;
  workgroupBarrier();
  var low = f16_max;
  var high = -f16_max;
  for (var d = thread; d < head_dim; d += 64u) {
    low = min(low, head[d]);
    high = max(high, head[d]);
  }
  sums[thread] = low;
  peaks[thread] = high;
  for (var reach = 32u; reach > 0u; reach >>= 1u) {
    workgroupBarrier();
    if (thread < reach) {
      sums[thread] = min(sums[thread], sums[thread + reach]);
      peaks[thread] = max(peaks[thread], peaks[thread + reach]);
    }
  }
  workgroupBarrier();

  let zero = unpack2x16float(pack2x16float(vec2<f32>(max(sums[0], -f16_max), 0.0))).x;
  let range = clamp(peaks[0] - zero, 0.0, 2.0 * f16_max);
  let scale_zero = pack2x16float(vec2<f32>(range / 255.0, zero));
  let scale = unpack2x16float(scale_zero).x;

  let quads = head_dim / 4u;
  let words = page * 2u * num_kv_heads * page_tokens * (quads + 1u);
  for (var quad = thread; quad < quads; quad += 64u) {
    var word = 0u;
    for (var i = 0u; i < 4u; i += 1u) {
      let steps = select(0.0, (head[4u * quad + i] - zero) / scale, scale > 0.0);
      word |= u32(clamp(round(steps), 0.0, 255.0)) << (8u * i);
    }
    kv[words + slot * page_tokens * quads + first + quad * stride] = word;
  }
  if (thread == 0u) {
    kv[words + (2u * num_kv_heads * quads + slot) * page_tokens + token] = scale_zero;
  }
}
