// Adds the shared expert, which every row takes, to the routes of a row as their last expert. Its weight is one, or the
// sigmoid of the logit behind those of the experts. The including file defines the bindings router_logits and routes.
override logit_stride: u32;       // num_experts, and one more with a shared gate
override route_stride: u32;       // top_k, and one more with a shared expert
override has_shared_gate: u32;    // 1: logit num_experts is that of the shared expert's gate

fn add_shared_route(thread: u32, row: u32) {
  if (route_stride > top_k && thread == 0u) {
    var weight = 1.0;
    if (has_shared_gate != 0u) {
      weight = 1.0 / (1.0 + exp(-router_logits[row * logit_stride + num_experts]));
    }
    routes[(row * route_stride + top_k) * 2u] = num_experts;
    routes[(row * route_stride + top_k) * 2u + 1u] = bitcast<u32>(weight);
  }
}
