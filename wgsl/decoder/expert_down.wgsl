// Second half of the FFNs that a step's rows were routed to: y of each pair = weight · (intermediate · downᵀ)
//   @binding(0) routes        read        u32 [num_rows, top_k, 2]: route.wgsl
//   @binding(1) codes         read        u32x4: an arena of expert blobs (protocol/tensor_format.h)
//   @binding(2) intermediate  read        f32 [num_rows * top_k, moe_intermediate_size], rows transposed for INT4
//   @binding(3) y_pairs       read_write  f32 [num_rows * top_k, hidden_size]; add_norm.wgsl adds a row's pairs
//   @binding(4) place         uniform     ArenaPlace in web-worker/decoder/step_rows.h, 16 bytes
//   @binding(5) words         read        INT4 only: the same arena, for scales and zeros
// A pair whose expert lies in another arena is passed over.
// 8 lanes share four outputs, each lane takes every 8th chunk of ${inputs} inputs.
// Dispatch (hidden_size / 32, number of rows * top_k, 1).
// Twin: expert_down() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include weights.wgsl
const outputs_per_group: u32 = 32u;
override hidden_size: u32;
override moe_intermediate_size: u32;
override down_codes_word: u32;           // from the start of a blob
//@ for i in 0..int4
override chunks_per_group_log2: u32;
override down_scale_zero_word: u32;
//@ end

struct ArenaPlace { first_expert: u32, num_experts: u32, expert_words: u32, unused: u32 }

@group(0) @binding(0) var<storage, read> routes: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> intermediate: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y_pairs: array<f32>;
@group(0) @binding(4) var<uniform> place: ArenaPlace;
//@ for i in 0..int4
@group(0) @binding(5) var<storage, read> words: array<u32>;
//@ end

var<workgroup> lane_sums: array<f32, 288>;   // 32 outputs, 8 lanes and padding

fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return intermediate[base + quad_at(moe_intermediate_size, quad, chunk)];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let pair = group.y;
  let expert = routes[2u * pair] - place.first_expert;   // wraps for those of arenas before
  if (expert >= place.num_experts) {
    return;
  }

  let blob = expert * place.expert_words;
  let lane = thread & 7u;
  let output = group.x * outputs_per_group + (thread >> 3u) * 4u;
  let chunks = moe_intermediate_size / chunk_inputs;
  let codes_0 = (blob + down_codes_word) / 4u + output * chunks;
//@ for i in 0..int4
  let groups = chunks >> chunks_per_group_log2;
  let scales_0 = blob + down_scale_zero_word + output * groups;
//@ end

  let x_base_0 = pair * (moe_intermediate_size / 4u);
//@ for w in 0..4
  var sum_0_${w} = 0.0;
//@ end
  for (var chunk = lane; chunk < chunks; chunk += 8u) {
//@ for w in 0..4
    var code_${w} = codes[codes_0 + ${w}u * chunks + chunk];
//@ end
//@ for i in 0..int4
//@ for w in 0..4
    let scale_zero_${w} = words[scales_0 + ${w}u * groups + (chunk >> chunks_per_group_log2)];
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

//@ for w in 0..4
  lane_sums[((thread >> 3u) * 4u + ${w}u) * 9u + lane] = sum_0_${w};
//@ end
  workgroupBarrier();

  // One thread adds the 8 lanes of one output.
  if (thread < outputs_per_group) {
    var sum = lane_sums[thread * 9u];
    for (var i = 1u; i < 8u; i += 1u) {
      sum += lane_sums[thread * 9u + i];
    }
    y_pairs[pair * hidden_size + group.x * outputs_per_group + thread] = bitcast<f32>(routes[2u * pair + 1u]) * sum;
  }
}
