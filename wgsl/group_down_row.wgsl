// Second half of a grouped round whose experts all reside in one arena and have few rows, including the conversion of
// the answers to wire form. answer = sum over its (row, expert) pairs, in the order of the table (experts ascending),
// of gate · (intermediate · downᵀ)
//   @binding(0) upload        read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) codes         read        u32x4: the arena of expert blobs, for the codes
//   @binding(2) words         read        u32: the same arena, for scales and zeros
//   @binding(3) intermediate  read        f32 [num_pairs, moe_intermediate_size], rows transposed
//   @binding(4) y_wire        read_write  u32: f16, bf16 or f32 rows; int8 needs a row's peak: group_down and pack_rows
// `clamped`: the product has a bias.
// A workgroup computes 8 outputs of one answer, from eight of its pairs at a time: 8 lanes share four outputs of a
// pair, each lane takes every 8th chunk of 32 inputs.
// The sums and their order are those of group_down.wgsl and pack_rows.wgsl.
// Dispatch (hidden_size / 8, number of answers, 1).
// CPU reference: expert_down() in protocol/expert_reference.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include round_header.wgsl
//@ include int4.wgsl
//@ for i in 0..clamped
//@ include clamped.wgsl
//@ end
//@ include wire_rows.wgsl
const outputs_per_group: u32 = 8u;

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> intermediate: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y_wire: array<u32>;

var<workgroup> lane_sums: array<f32, 576>;   // 4 outputs x 16 x 8 partial sums, padded
var<workgroup> pair_sums: array<f32, 64>;    // sums of 8 outputs for each of 8 pairs
var<workgroup> answer: array<f32, 8>;

fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return intermediate[base + quad * (moe_intermediate_size / 32u) + chunk];
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let starts = upload[header_answer_starts_word] + group.y;
  let first_pair = upload[starts];
  let num_pairs = upload[starts + 1u] - first_pair;
  // Words of an answer's pair: blob's first word in the arena, index of the pair, gate as f32 bits, unused.
  let list = upload[header_answer_pairs_word] + first_pair * 4u;

  let lane = thread & 7u;
  let first_output = group.x * outputs_per_group;
  let output = first_output + ((thread >> 3u) & 1u) * 4u;
  let chunks = moe_intermediate_size / 32u;
  let groups = chunks >> chunks_per_group_log2;

  var total = 0.0;
  for (var first = 0u; first < num_pairs; first += 8u) {
//@ for w in 0..4
    var sum_0_${w} = 0.0;
//@ end
    if (first + (thread >> 4u) < num_pairs) {
      let entry = list + (first + (thread >> 4u)) * 4u;
      let blob = upload[entry];
      let x_base_0 = upload[entry + 1u] * (moe_intermediate_size / 4u);
      let codes_0 = (blob + down_codes_word) / 4u + output * chunks;
//@ for i in 0..affine
      let scales_0 = blob + down_scale_zero_word + output * groups;
//@ end
//@ for i in 0..mxfp4
      let scales_0 = (blob + down_scale_zero_word) * 4u + output * groups;
//@ end
      for (var first_chunk = 0u; first_chunk < chunks; first_chunk += 8u) {
        let chunk = first_chunk + lane;
        if (chunk < chunks) {
          let scale_at = scales_0 + (chunk >> chunks_per_group_log2);
//@ for w in 0..4
          var code_${w} = codes[codes_0 + ${w}u * chunks + chunk];
//@ for i in 0..affine
          let scale_zero_${w} = words[scale_at + ${w}u * groups];
//@ end
//@ for i in 0..mxfp4
          let scale_zero_${w} = mxfp4_scale(scale_at + ${w}u * groups);
//@ end
//@ end
//@ include int4_chunk.wgsl
        }
      }
    }

//@ for w in 0..4
    lane_sums[${w}u * 144u + (thread >> 3u) * 9u + lane] = sum_0_${w};
//@ end
    workgroupBarrier();

    // For each output of a pair, a single thread adds the partial sums of the 8 lanes.
    if (thread < 64u && first + (thread >> 3u) < num_pairs) {
      let first_lane = (thread & 3u) * 144u + (thread >> 2u) * 9u;
      var sum = lane_sums[first_lane];
//@ for i in 1..8
      sum += lane_sums[first_lane + ${i}u];
//@ end
//@ for i in 0..clamped
      let blob = upload[list + (first + (thread >> 3u)) * 4u];
      sum += bitcast<f32>(words[blob + down_bias_word + first_output + (thread & 7u)]);
//@ end
      pair_sums[thread] = bitcast<f32>(upload[list + (first + (thread >> 3u)) * 4u + 2u]) * sum;
    }
    workgroupBarrier();

    if (thread < outputs_per_group) {
      for (var i = 0u; i < min(8u, num_pairs - first); i += 1u) {
        total += pair_sums[i * 8u + thread];
      }
    }
  }

  let dtype = upload[header_dtype];
  if (thread < outputs_per_group) {
    answer[thread] = total;
    if (dtype == dtype_f32) {
      y_wire[group.y * hidden_size + first_output + thread] = bitcast<u32>(total);
    }
  }
  workgroupBarrier();
  if (thread < outputs_per_group / 2u && dtype != dtype_f32) {
    y_wire[(group.y * hidden_size + first_output) / 2u + thread] =
      pack_two(dtype, answer[2u * thread], answer[2u * thread + 1u]);
  }
}
