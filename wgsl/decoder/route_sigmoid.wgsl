// Chooses a row's experts by a sigmoid of each logit: the top_k by score + correction, weighed by the score alone; on
// ties, the lower id first. If the experts are in groups, only those of the groups_kept groups with the largest sum of
// two choice scores keep their choice score; that of the others is 0.
//   @binding(0) router_logits  read        f32 [num_rows, logit_stride]
//   @binding(1) routes         read_write  u32 [num_rows, route_stride, 2]: expert, its weight as f32 bits; experts
//                                          ascending, then the shared expert (shared_route.wgsl)
//   @binding(2) correction     read        f32 [num_experts]
// One workgroup a row. Dispatch (1, number of rows, 1).
// CPU reference: route_sigmoid() in tests/web-worker/decoder_twins.h; the same experts, weights within 1e-6.
//@ host_checked
override num_experts: u32;      // at most 1024
override top_k: u32;            // at most 64
override norm_topk_prob: u32;   // 1: scale the weights of a row's experts to sum to one, before `scaling`
override num_groups: u32;       // at most 64
override groups_kept: u32;
override scaling_bits: u32;     // f32 bits of a factor of all weights
//@ include shared_route.wgsl

@group(0) @binding(0) var<storage, read> router_logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> routes: array<u32>;
@group(0) @binding(2) var<storage, read> correction: array<f32>;

var<workgroup> choice: array<f32, 1024>;   // what an expert is chosen by
var<workgroup> group_sums: array<f32, 64>;
var<workgroup> experts: array<u32, 64>;    // ids of the chosen experts, in order of rank
var<workgroup> chosen: array<f32, 64>;     // their scores

fn score_of(row: u32, expert: u32) -> f32 {
  return 1.0 / (1.0 + exp(-router_logits[row * logit_stride + expert]));
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.y;
  if (thread < top_k) {
    experts[thread] = 0u;   // expert 0 is chosen if all logits are NaN
  }
  for (var e = thread; e < num_experts; e += 128u) {
    choice[e] = score_of(row, e) + correction[e];
  }
  workgroupBarrier();

  if (num_groups > 1u) {
    let group_size = num_experts / num_groups;
    if (thread < num_groups) {
      var best = choice[thread * group_size];
      var second = select(0.0, -3.0e38, group_size > 1u);
      for (var i = 1u; i < group_size; i += 1u) {
        let one = choice[thread * group_size + i];
        second = max(second, min(best, one));
        best = max(best, one);
      }
      group_sums[thread] = best + second;
    }
    workgroupBarrier();
    for (var e = thread; e < num_experts; e += 128u) {
      let mine = e / group_size;
      var above = 0u;   // number of groups with a better rank
      for (var other = 0u; other < num_groups; other += 1u) {
        let wins = group_sums[other] > group_sums[mine] || (group_sums[other] == group_sums[mine] && other < mine);
        above += select(0u, 1u, wins);
      }
      if (above >= groups_kept) {
        choice[e] = 0.0;
      }
    }
    workgroupBarrier();
  }

  for (var e = thread; e < num_experts; e += 128u) {
    var rank = 0u;   // number of experts with a better rank
    for (var other = 0u; other < num_experts; other += 1u) {
      let wins = choice[other] > choice[e] || (choice[other] == choice[e] && other < e);
      rank += select(0u, 1u, wins);
    }
    if (rank < top_k) {
      chosen[rank] = score_of(row, e);
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
    total += 1.0e-20;
  }
  if (thread < top_k) {
    let mine = experts[thread];
    var slot = 0u;
    for (var other = 0u; other < top_k; other += 1u) {
      slot += select(0u, 1u, experts[other] < mine);
    }
    routes[(row * route_stride + slot) * 2u] = mine;
    let weight = chosen[thread] / total * bitcast<f32>(scaling_bits);
    routes[(row * route_stride + slot) * 2u + 1u] = bitcast<u32>(weight);
  }
  add_shared_route(thread, row);
}
