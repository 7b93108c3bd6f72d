// First half of the FFNs that a step's rows were routed to: intermediate = silu(x · gateᵀ) * (x · upᵀ)
//   @binding(0) routes        read        u32 [num_rows, top_k, 2]: route.wgsl
//   @binding(1) codes         read        u32x4: an arena of expert blobs (protocol/tensor_format.h)
//   @binding(2) x             read        f32 [num_rows, hidden_size], rows transposed for INT4
//   @binding(3) intermediate  read_write  f32 [num_rows * top_k, moe_intermediate_size], rows transposed for INT4
//   @binding(4) place         uniform     ArenaPlace in web-worker/decoder/step_rows.h, 16 bytes
//   @binding(5) words         read        INT4 only: the same arena, for scales and zeros
// A pair whose expert lies in another arena is passed over.
// 16 lanes share two outputs (four rows of weights), each lane takes every 16th chunk of ${inputs} inputs.
// Dispatch (moe_intermediate_size / 16, number of rows * top_k, 1).
// Twin: expert_gate_up() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include weights.wgsl
const outputs_per_group: u32 = 16u;
override hidden_size: u32;
override moe_intermediate_size: u32;
override top_k: u32;
//@ for i in 0..int4
override chunks_per_group_log2: u32;
override gate_up_scale_zero_word: u32;   // from the start of a blob
//@ end

struct ArenaPlace { first_expert: u32, num_experts: u32, expert_words: u32, unused: u32 }

@group(0) @binding(0) var<storage, read> routes: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> intermediate: array<f32>;
@group(0) @binding(4) var<uniform> place: ArenaPlace;
//@ for i in 0..int4
@group(0) @binding(5) var<storage, read> words: array<u32>;
//@ end

var<workgroup> lane_sums: array<f32, 544>;    // four rows of weights, 8 x 16 lanes, and padding

fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return x[base + quad_at(hidden_size, quad, chunk)];
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let pair = group.y;
  let expert = routes[2u * pair] - place.first_expert;   // wraps for those of arenas before
  if (expert >= place.num_experts) {
    return;
  }

  let blob = expert * place.expert_words;
  let lane = thread & 15u;
  let output = group.x * outputs_per_group + (thread >> 4u) * 2u;
  let chunks = hidden_size / chunk_inputs;
  let codes_0 = blob / 4u + output * chunks;
  let codes_1 = codes_0 + chunks;
  let codes_2 = codes_0 + moe_intermediate_size * chunks;
  let codes_3 = codes_2 + chunks;
//@ for i in 0..int4
  let groups = chunks >> chunks_per_group_log2;
  let scales_0 = blob + gate_up_scale_zero_word + output * groups;
  let scales_1 = scales_0 + groups;
  let scales_2 = scales_0 + moe_intermediate_size * groups;
  let scales_3 = scales_2 + groups;
//@ end

  let x_base_0 = (pair / top_k) * (hidden_size / 4u);
//@ for w in 0..4
  var sum_0_${w} = 0.0;
//@ end
  for (var chunk = lane; chunk < chunks; chunk += 16u) {
//@ for w in 0..4
    var code_${w} = codes[codes_${w} + chunk];
//@ end
//@ for i in 0..int4
//@ for w in 0..4
    let scale_zero_${w} = words[scales_${w} + (chunk >> chunks_per_group_log2)];
//@ end
//@ include ../int4_chunk.wgsl
//@ end
//@ for i in 0..bf16
//@ include bf16_chunk.wgsl
//@ end
//@ for i in 0..f32
//@ include f32_chunk.wgsl
//@ end
  }

  let slot = (thread >> 4u) * 17u + lane;
//@ for w in 0..4
  lane_sums[${w}u * 136u + slot] = sum_0_${w};
//@ end
  workgroupBarrier();

  // One thread adds the 16 lanes of one output.
  if (thread < outputs_per_group) {
    let first_lane = (thread & 1u) * 136u + (thread >> 1u) * 17u;
    var gate = lane_sums[first_lane];
    var up = lane_sums[first_lane + 272u];
    for (var i = 1u; i < 16u; i += 1u) {
      gate += lane_sums[first_lane + i];
      up += lane_sums[first_lane + 272u + i];
    }
    let column = group.x * outputs_per_group + thread;
//@ for i in 0..int4
    let stored = transposed(column, moe_intermediate_size);
//@ end
//@ for i in 0..wide
    let stored = column;
//@ end
    intermediate[pair * moe_intermediate_size + stored] = silu_times(gate, up);
  }
}
