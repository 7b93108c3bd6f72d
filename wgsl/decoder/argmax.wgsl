// The best of 256 threads' candidates, ties to the lower token, at the first place of two arrays.
var<workgroup> best_values: array<f32, 256>;
var<workgroup> best_tokens: array<u32, 256>;

fn reduce_best(thread: u32, value: f32, token: u32) {
  best_values[thread] = value;
  best_tokens[thread] = token;
  for (var stride = 128u; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (thread < stride) {
      let theirs = best_values[thread + stride];
      let their_token = best_tokens[thread + stride];
      if (theirs > best_values[thread] || (theirs == best_values[thread] && their_token < best_tokens[thread])) {
        best_values[thread] = theirs;
        best_tokens[thread] = their_token;
      }
    }
  }
  workgroupBarrier();
}
