// First step of a grouped round whose experts have several rows: converts the rows of x from wire form to f32,
// transposed.
//   @binding(0) upload   read        u32: header, tables and x of the round (web-worker/gpu/round_layout.h)
//   @binding(1) x        read_write  f32 [num_tokens, hidden_size], rows transposed
// Dispatch (ceil(num_tokens * hidden_size / 256), 1, 1), 64 threads of four values each.
// CPU reference: decode_rows() in protocol/tensor_format.h, exact for f16, bf16, f32 and int8.
//@ host_checked
//@ include round_header.wgsl
//@ include int4.wgsl
//@ include wire_rows.wgsl
const values_per_thread: u32 = 4u;

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;

//@ include wire_x.wgsl

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let quads = hidden_size / 4u;
  if (id.x >= upload[header_num_tokens] * quads) {
    return;
  }
  let row = id.x / quads;
  let quad = id.x % quads;
  x[row * quads + transposed(quad * 4u, hidden_size) / 4u] = wire_quad(row, quad);
}
