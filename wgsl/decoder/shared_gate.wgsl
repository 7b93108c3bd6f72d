// Writes the routes to the shared expert where the routed experts are computed elsewhere: expert 0 of an arena of its
// own, with the sigmoid of the gate's logit as its weight. Otherwise route.wgsl adds the shared expert to the routes.
//   @binding(0) rows           read        u32: rows.wgsl
//   @binding(1) router_logits  read        f32 [num_rows, num_experts + 1], the gate's logit last
//   @binding(2) routes         read_write  u32 [num_rows, 2]: 0, the weight as f32 bits
// Dispatch (ceil(number of rows / 64), 1, 1).
// CPU reference: sigmoid in tests/web-worker/decoder_kernels_test.cpp, within 1e-6.
//@ host_checked
//@ include rows.wgsl
override num_experts: u32;

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> router_logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> routes: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= rows[num_rows_word]) {
    return;
  }
  let logit = router_logits[id.x * (num_experts + 1u) + num_experts];
  routes[2u * id.x] = 0u;
  routes[2u * id.x + 1u] = bitcast<u32>(1.0 / (1.0 + exp(-logit)));
}
