// Multiplies rows by a matrix: y[row, output] = sum of weights[output, input] * x[row, input] (+ bias[output])
//   @binding(0) codes       read        u32x4 [num_out, num_in / ${inputs}]
//   @binding(1) x           read        f32 [num_rows, num_in], rows transposed for INT4
//   @binding(2) bias        read        f32 [num_out], not read unless has_bias
//   @binding(3) y           read_write  f32 [num_rows, y_stride]
//   @binding(4) scale_zero  read        INT4 only: 2×f16 a word [num_out, num_in / group size]
// A workgroup computes outputs_per_group outputs of ${rows} rows: 32 lanes share half of the outputs, each lane takes
// every 32nd chunk of ${inputs} inputs. With one output for 32 lanes (`spread`, for a row with few outputs), each lane
// issues the reads of four chunks before it needs the first, so that enough reads are in flight to keep the GPU's
// memory busy. A row's sums depend neither on the number of rows nor on the number of outputs that lanes share.
// Rows are padded to tiles of ${rows}: x and y have room for whole tiles.
// Dispatch (ceil(num_out / outputs_per_group), number of tiles, 1).
// CPU reference: matvec() in tests/web-worker/decoder_twins.h, normalised RMS error <= 1e-6.
//@ host_checked
//@ include weights.wgsl
const outputs_per_group: u32 = ${group_outputs}u;
const tile_rows: u32 = ${rows}u;
const lane_words: u32 = 33u * outputs_per_group;
override num_in: u32;
override num_out: u32;
override y_stride: u32;
override has_bias: u32;
//@ for i in 0..int4
override chunks_per_group_log2: u32;
//@ end

@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
//@ for i in 0..int4
@group(0) @binding(4) var<storage, read> scale_zero: array<u32>;
//@ end

var<workgroup> lane_sums: array<f32, lane_words * tile_rows>;   // per row: outputs x 32 partial sums, padded

fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return x[base + quad_at(num_in, quad, chunk)];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread & 31u;
  let output = group.x * outputs_per_group + (thread >> 5u) * ${outputs}u;
  let chunks = num_in / chunk_inputs;
  // Outputs after the last output of the matrix repeat that output and are not stored.
//@ for w in 0..outputs
  let output_${w} = min(output + ${w}u, num_out - 1u);
//@ end
//@ for r in 0..rows
  let x_base_${r} = (group.y * tile_rows + ${r}u) * (num_in / 4u);
//@ for w in 0..outputs
  var sum_${r}_${w} = 0.0;
//@ end
//@ end
  var first = lane;
//@ for i in 0..ahead
  for (; first + 96u < chunks; first += 128u) {
//@ for s in 0..4
//@ for w in 0..outputs
    let ahead_${s}_${w} = codes[output_${w} * chunks + first + 32u * ${s}u];
//@ end
//@ end
//@ for s in 0..4
    {
      let chunk = first + 32u * ${s}u;
//@ for w in 0..outputs
      var code_${w} = ahead_${s}_${w};
//@ end
//@ include matvec_chunk.wgsl
    }
//@ end
  }
//@ end
  for (var chunk = first; chunk < chunks; chunk += 32u) {
//@ for w in 0..outputs
    var code_${w} = codes[output_${w} * chunks + chunk];
//@ end
//@ include matvec_chunk.wgsl
  }

//@ for r in 0..rows
//@ for w in 0..outputs
  lane_sums[${r}u * lane_words + ((thread >> 5u) * ${outputs}u + ${w}u) * 33u + lane] = sum_${r}_${w};
//@ end
//@ end
  workgroupBarrier();

  // For each output of a row, a single thread adds the partial sums of the 32 lanes.
  for (var i = thread; i < outputs_per_group * tile_rows; i += 64u) {
    let stored = group.x * outputs_per_group + i % outputs_per_group;
    if (stored < num_out) {
      var sum = lane_sums[i * 33u];
      for (var other = 1u; other < 32u; other += 1u) {
        sum += lane_sums[i * 33u + other];
      }
      if (has_bias != 0u) {
        sum += bias[stored];
      }
      y[(group.y * tile_rows + i / outputs_per_group) * y_stride + stored] = sum;
    }
  }
}
