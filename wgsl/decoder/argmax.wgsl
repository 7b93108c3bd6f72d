// Reduces the candidates of 256 threads to the best one, in element 0 of both arrays; on ties, the lower token wins.
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
