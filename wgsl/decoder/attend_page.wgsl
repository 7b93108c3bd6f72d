// Attention of a row over one page of its keys and values: a part of softmax(scale * q · kᵀ) · v.
//   @binding(0) rows   read        u32: rows.wgsl
//   @binding(1) pages  read        u32: page tables
//   @binding(2) q      read        f32 [num_rows, num_heads, head_dim]
//   @binding(3) kv     read        f32, or 2×f16 a word, or u8 codes: rope_store.wgsl
//   @binding(4) parts  read_write  f32 [num_rows, num_heads, part_pages, head_dim]: sum of exp(score - peak) * v
//   @binding(5) peaks  read_write  f32 [num_rows, num_heads, part_pages, 2]: peak score, sum of exp(score - peak)
// A page whose entry in the page table is absent_page is left out: its part is computed by another dispatch, while the
// page is in a staging slot (web-worker/decoder/paged_steps.h).
// A page is a separate split whatever rows are computed together, so a row's bits depend on its position only (Dao et
// al., "Flash-Decoding", 2023). Pages after the row's position are skipped, and
// with a window those before it.
// Scores: one thread per token. Values: one thread per quad of all heads and every fourth token (every second token if
// head_dim is above 128), so that each value is read once and few reads depend on each other: eight reads are issued
// before the first result is needed. The sums of the tokens are added in pairs. Up to eight heads that share keys and
// values are computed together: blocks = ceil(num_heads / num_kv_heads / 8).
// Dispatch (num_kv_heads * blocks, number of pages, number of rows).
// CPU reference: attend() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-5.
//@ host_checked
//@ include rows.wgsl
//@ include ../arithmetic.wgsl
const block_heads: u32 = 8u;
const absent_page: u32 = 0xffffffffu;
override num_heads: u32;
override num_kv_heads: u32;
override head_dim: u32;    // size of a head: a multiple of 4, at most 256
override window: u32;      // positions that a row sees, its own included; 0: all
override scale_bits: u32;  // f32 bits of the scale; 0: 1 / sqrt(head_dim)

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> pages: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
//@ for i in 0..f32
@group(0) @binding(3) var<storage, read> kv: array<vec4<f32>>;
//@ end
//@ for i in 0..f16
@group(0) @binding(3) var<storage, read> kv: array<vec2<u32>>;
//@ end
//@ for i in 0..u8
@group(0) @binding(3) var<storage, read> kv: array<u32>;
//@ end
@group(0) @binding(4) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> peaks: array<f32>;

var<workgroup> queries: array<vec4<f32>, 512>;   // q of 8 heads of 256 values; reused for half of the sums over tokens
var<workgroup> weights: array<f32, 1024>;        // scores, later exp(score - peak), of 128 tokens for each of 8 heads
var<workgroup> lanes: array<f32, 128>;           // scratch memory of 16 lanes for each of 8 heads
//@ for i in 0..u8
var<workgroup> value_scales: array<u32, 128>;
//@ end

// Returns four neighbouring keys or values as floats. `scale_zero` is the word with the scale and zero of the token in
// this head; only u8 uses it.
fn kv_quad(at: u32, scale_zero: u32) -> vec4<f32> {
//@ for i in 0..f32
  return kv[at];
//@ end
//@ for i in 0..f16
  return vec4<f32>(unpack2x16float(kv[at].x), unpack2x16float(kv[at].y));
//@ end
//@ for i in 0..u8
  let word = kv[at];
  let codes = vec4<f32>(vec4<u32>(word & 255u, (word >> 8u) & 255u, (word >> 16u) & 255u, word >> 24u));
  let scale = unpack2x16float(scale_zero);
  return fma(codes, vec4<f32>(scale.x), vec4<f32>(scale.y));
//@ end
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.z;
  let page = group.y;
  let position = rows[rows_word + 4u * row + 1u];
  if (page * page_tokens > position) {
    return;
  }
  let count = min(page_tokens, position + 1u - page * page_tokens);
  var seen = 0u;   // the page's first token within the window
  if (window != 0u) {
    let first_position = max(position + 1u, window) - window;
    if ((page + 1u) * page_tokens <= first_position) {
      return;
    }
    seen = max(first_position, page * page_tokens) - page * page_tokens;
  }
  let shared_by = num_heads / num_kv_heads;
  let blocks = (shared_by + block_heads - 1u) / block_heads;
  let kv_head = group.x / blocks;
  let block = group.x % blocks;
  let heads = min(block_heads, shared_by - block * block_heads);
  let first_head = row * num_heads + kv_head * shared_by + block * block_heads;
  let part_pages = rows[part_pages_word];
  let quads = head_dim / 4u;
  let place = pages[rows[rows_word + 4u * row + 2u] + page];
  if (place == absent_page) {
    return;
  }
//@ for i in 0..wide
  let k_base = (place * 2u * num_kv_heads + kv_head) * page_tokens * quads;
//@ end
//@ for i in 0..u8
  let page_base = place * 2u * num_kv_heads * page_tokens * (quads + 1u);
  let k_base = page_base + kv_head * page_tokens * quads;
  let k_scales = page_base + (2u * num_kv_heads * quads + kv_head) * page_tokens;
  let v_scales = k_scales + num_kv_heads * page_tokens;
//@ end
  let v_base = k_base + num_kv_heads * page_tokens * quads;

  for (var i = thread; i < heads * quads; i += 128u) {
    queries[i] = q[first_head * quads + i];
  }
  workgroupBarrier();

//@ for h in 0..8
  var score_${h} = 0.0;
//@ end
  var scale_zero = 0u;
//@ for i in 0..u8
  scale_zero = kv[k_scales + thread];
  value_scales[thread] = kv[v_scales + thread];   // other threads read it after a barrier
//@ end
  for (var quad = 0u; quad < quads; quad += 8u) {
//@ for s in 0..8
    let k_${s} = kv_quad(k_base + min(quad + ${s}u, quads - 1u) * page_tokens + thread, scale_zero);
//@ end
//@ for s in 0..8
    if (quad + ${s}u < quads) {
//@ for h in 0..8
      if (${h}u < shared_by) {
        score_${h} = add_dot(k_${s}, queries[${h}u * quads + quad + ${s}u], score_${h});
      }
//@ end
    }
//@ end
  }
  let scale = select(bitcast<f32>(scale_bits), 1.0 / sqrt(f32(head_dim)), scale_bits == 0u);
//@ for h in 0..8
  weights[${h}u * page_tokens + thread] = select(-3.0e38, score_${h} * scale, thread < count && thread >= seen);
//@ end
  workgroupBarrier();

  // 16 lanes per head compute the head's peak score, then its sum of exp(score - peak).
  let first = (thread >> 4u) * page_tokens + (thread & 15u);
  var peak = weights[first];
  for (var i = 16u; i < page_tokens; i += 16u) {
    peak = max(peak, weights[first + i]);
  }
  lanes[thread] = peak;
  workgroupBarrier();
  let first_lane = thread & 0x70u;
  for (var i = 0u; i < 16u; i += 1u) {
    peak = max(peak, lanes[first_lane + i]);
  }
  workgroupBarrier();

  var sum = 0.0;
  for (var i = 0u; i < page_tokens; i += 16u) {
    let weight = exp(weights[first + i] - peak);
    weights[first + i] = weight;
    sum += weight;
  }
  lanes[thread] = sum;
  workgroupBarrier();
  if ((thread & 15u) == 0u && (thread >> 4u) < heads) {
    var total = lanes[thread];
    for (var i = 1u; i < 16u; i += 1u) {
      total += lanes[thread + i];
    }
    let to = ((first_head + (thread >> 4u)) * part_pages + page) * 2u;
    peaks[to] = peak;
    peaks[to + 1u] = total;
  }

  // The tokens are divided into slices; a thread sums one quad of the values over the tokens of one slice.
  let slices = select(4u, 2u, quads > 32u);
  let slice = thread / quads;
  let quad = thread % quads;
//@ for h in 0..8
  var mix_${h} = vec4<f32>(0.0);
//@ end
  if (slice < slices) {
    for (var token = slice; token < count; token += 8u * slices) {
//@ for s in 0..8
      let token_${s} = token + ${s}u * slices;
      let held_${s} = min(token_${s}, count - 1u);
//@ for i in 0..u8
      scale_zero = value_scales[held_${s}];
//@ end
      let v_${s} = kv_quad(v_base + held_${s} * quads + quad, scale_zero);
//@ end
//@ for s in 0..8
      if (token_${s} < count) {
//@ for h in 0..8
        if (${h}u < shared_by) {
          mix_${h} = fma(vec4<f32>(weights[${h}u * page_tokens + token_${s}]), v_${s}, mix_${h});
        }
//@ end
      }
//@ end
    }
  }
  for (var reach = slices / 2u; reach > 0u; reach >>= 1u) {
    if (slice >= reach && slice < 2u * reach) {
//@ for h in 0..8
      if (${h}u < shared_by) {
        queries[((slice - reach) * block_heads + ${h}u) * quads + quad] = mix_${h};
      }
//@ end
    }
    workgroupBarrier();
    if (slice < reach) {
//@ for h in 0..8
      if (${h}u < shared_by) {
        mix_${h} += queries[(slice * block_heads + ${h}u) * quads + quad];
      }
//@ end
    }
    workgroupBarrier();
  }
  if (slice == 0u) {
//@ for h in 0..8
    if (${h}u < heads) {
      parts[((first_head + ${h}u) * part_pages + page) * quads + quad] = mix_${h};
    }
//@ end
  }
}
