// Finds the likeliest token of each stretch of the vocabulary; on ties, the lower id wins.
//   @binding(0) logits  read        f32 [vocab_size]
//   @binding(1) best    read_write  u32 [number of stretches, 2]: logit as f32 bits, token
// Dispatch (ceil(vocab_size / 1024), 1, 1).
// CPU reference: argmax() in tests/web-worker/decoder_twins.h, exact.
//@ host_checked
const stretch_tokens: u32 = 1024u;
override vocab_size: u32;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> best: array<u32>;

//@ include argmax.wgsl

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first = group.x * stretch_tokens;
  var token = first + thread;
  var value = -3.4028234e38;
  if (token < vocab_size) {
    value = logits[token];
  }
  for (var i = first + thread + 256u; i < min(first + stretch_tokens, vocab_size); i += 256u) {
    if (logits[i] > value) {
      value = logits[i];
      token = i;
    }
  }
  reduce_best(thread, value, token);
  if (thread == 0u) {
    best[2u * group.x] = bitcast<u32>(best_values[0]);
    best[2u * group.x + 1u] = best_tokens[0];
  }
}
