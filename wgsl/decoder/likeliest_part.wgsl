// Finds the likeliest tokens of each stretch of a row's vocabulary.
//   @binding(0) logits  read        f32 [num_rows, vocab_size]
//   @binding(1) lists   read_write  u32 [num_rows, number of stretches, list_words]: likeliest.wgsl
// Dispatch (number of stretches, num_rows, 1).
// CPU reference: likeliest() in tests/web-worker/decoder_twins.h; the tokens exactly, the sum within 1e-5.
//@ host_checked
//@ include likeliest.wgsl
override vocab_size: u32;
override num_stretches: u32;   // ceil(vocab_size / 1024)

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> lists: array<u32>;

var<workgroup> sums: array<f32, 256>;
var<workgroup> broken: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var strange = 0u;
  for (var i = thread; i < sorted_places; i += 256u) {
    let token = group.x * sorted_places + i;
    logit_at[i] = lowest;
    token_at[i] = no_token;
    if (token < vocab_size) {
      let logit = logits[group.y * vocab_size + token];
      strange |= select(1u, 0u, is_number(bitcast<u32>(logit)));
      logit_at[i] = logit;
      token_at[i] = token;
    }
  }
  sort_places(thread);

  var sum = 0.0;
  for (var i = thread; i < sorted_places; i += 256u) {
    sum += select(0.0, exp(logit_at[i] - logit_at[0]), token_at[i] != no_token);
  }
  sums[thread] = sum;
  broken[thread] = strange;
  for (var reach = 128u; reach > 0u; reach >>= 1u) {
    workgroupBarrier();
    if (thread < reach) {
      sums[thread] += sums[thread + reach];
      broken[thread] |= broken[thread + reach];
    }
  }
  workgroupBarrier();

  let list = (group.y * num_stretches + group.x) * list_words;
  if (thread == 0u) {
    lists[list] = bitcast<u32>(logit_at[0]);
    lists[list + 1u] = select(bitcast<u32>(sums[0]), not_a_number, broken[0] != 0u);
  }
  if (thread < kept) {
    lists[list + 2u + 2u * thread] = bitcast<u32>(logit_at[thread]);
    lists[list + 3u + 2u * thread] = token_at[thread];
  }
}
