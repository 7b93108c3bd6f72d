// Which experts a row meets: softmax over all of them, the top_k by logit, ties to the lower id.
//   @binding(0) router_logits  read        f32 [num_rows, num_experts]
//   @binding(1) routes         read_write  u32 [num_rows, top_k, 2]: expert, its weight as f32 bits; experts ascending
// One workgroup a row. Dispatch (1, number of rows, 1).
// Twin: route() in tests/web-worker/decoder_twins.h; the same experts, weights within 1e-6.
//@ host_checked
override num_experts: u32;      // at most 1024
override top_k: u32;            // at most 64
override norm_topk_prob: u32;   // the chosen weights sum to one

@group(0) @binding(0) var<storage, read> router_logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> routes: array<u32>;

var<workgroup> logits: array<f32, 1024>;
var<workgroup> ranks: array<u32, 1024>;
var<workgroup> lanes: array<f32, 128>;
var<workgroup> chosen: array<f32, 64>;   // probabilities, by rank

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  var peak = -3.0e38;
  for (var e = thread; e < num_experts; e += 128u) {
    logits[e] = router_logits[row * num_experts + e];
    peak = max(peak, logits[e]);
  }
  lanes[thread] = peak;
  for (var stride = 64u; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (thread < stride) {
      lanes[thread] = max(lanes[thread], lanes[thread + stride]);
    }
  }
  workgroupBarrier();
  peak = lanes[0];
  workgroupBarrier();

  var sum = 0.0;
  for (var e = thread; e < num_experts; e += 128u) {
    sum += exp(logits[e] - peak);
  }
  lanes[thread] = sum;
  for (var stride = 64u; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (thread < stride) {
      lanes[thread] += lanes[thread + stride];
    }
  }
  workgroupBarrier();

  for (var e = thread; e < num_experts; e += 128u) {
    let mine = logits[e];
    var rank = 0u;
    for (var other = 0u; other < num_experts; other += 1u) {
      let theirs = logits[other];
      rank += select(0u, 1u, theirs > mine || (theirs == mine && other < e));
    }
    ranks[e] = rank;
    if (rank < top_k) {
      chosen[rank] = exp(mine - peak) / lanes[0];
    }
  }
  workgroupBarrier();

  var total = 1.0;
  if (norm_topk_prob != 0u) {
    total = chosen[0];
    for (var i = 1u; i < top_k; i += 1u) {
      total += chosen[i];
    }
  }
  for (var e = thread; e < num_experts; e += 128u) {
    if (ranks[e] < top_k) {
      var slot = 0u;
      for (var other = 0u; other < e; other += 1u) {
        slot += select(0u, 1u, ranks[other] < top_k);
      }
      if (slot < top_k) {   // always, unless the logits are NaN
        routes[(row * top_k + slot) * 2u] = e;
        routes[(row * top_k + slot) * 2u + 1u] = bitcast<u32>(chosen[ranks[e]] / total);
      }
    }
  }
}
