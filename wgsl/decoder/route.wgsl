// Chooses a row's experts: softmax over all experts, the top_k by logit; on ties, the lower id first.
//   @binding(0) router_logits  read        f32 [num_rows, logit_stride]
//   @binding(1) routes         read_write  u32 [num_rows, route_stride, 2]: expert, its weight as f32 bits; experts
//                                          ascending, then the shared expert (shared_route.wgsl)
// One workgroup a row. Dispatch (1, number of rows, 1).
// CPU reference: route() in tests/web-worker/decoder_twins.h; the same experts, weights within 1e-6.
//@ host_checked
override num_experts: u32;      // at most 1024
override top_k: u32;            // at most 64
override norm_topk_prob: u32;   // 1: scale the weights of a row's experts to sum to one
//@ include shared_route.wgsl

@group(0) @binding(0) var<storage, read> router_logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> routes: array<u32>;

var<workgroup> logits: array<vec4<f32>, 256>;   // of all experts, padded with the last expert's logit
var<workgroup> experts: array<u32, 64>;   // ids of the chosen experts, in order of rank
var<workgroup> lanes: array<f32, 128>;
var<workgroup> chosen: array<f32, 64>;   // probabilities of the chosen experts, in order of rank

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  var peak = -3.0e38;
  let last = row * logit_stride + num_experts - 1u;
  for (var four = thread; 4u * four < num_experts; four += 128u) {
    let first = row * logit_stride + 4u * four;
    let theirs = vec4<f32>(router_logits[first], router_logits[min(first + 1u, last)],
                           router_logits[min(first + 2u, last)], router_logits[min(first + 3u, last)]);
    logits[four] = theirs;
    peak = max(max(peak, max(theirs.x, theirs.y)), max(theirs.z, theirs.w));
  }
  if (thread < top_k) {
    experts[thread] = 0u;   // expert 0 is chosen if all logits are NaN
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
    sum += exp(logits[e / 4u][e % 4u] - peak);
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
    let mine = logits[e / 4u][e % 4u];
    var above = vec4<u32>(0u);   // number of experts with a better rank, counted in four lanes
    for (var four = 0u; 4u * four < num_experts; four += 1u) {
      let ids = vec4<u32>(4u * four) + vec4<u32>(0u, 1u, 2u, 3u);
      let theirs = logits[four];
      let wins = (theirs > vec4<f32>(mine)) | ((theirs == vec4<f32>(mine)) & (ids < vec4<u32>(e)));
      above += select(vec4<u32>(0u), vec4<u32>(1u), wins & (ids < vec4<u32>(num_experts)));
    }
    let rank = above.x + above.y + above.z + above.w;
    if (rank < top_k) {
      chosen[rank] = exp(mine - peak) / lanes[0];
      experts[rank] = e;
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
  if (thread < top_k) {
    let mine = experts[thread];
    var slot = 0u;
    for (var other = 0u; other < top_k; other += 1u) {
      slot += select(0u, 1u, experts[other] < mine);
    }
    routes[(row * route_stride + slot) * 2u] = mine;
    routes[(row * route_stride + slot) * 2u + 1u] = bitcast<u32>(chosen[thread] / total);
  }
  add_shared_route(thread, row);
}
