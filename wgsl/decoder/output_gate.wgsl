// Multiplies a row's attention by the sigmoid of its gate.
//   @binding(0) gates     read        f32 [num_rows, size]
//   @binding(1) attended  read_write  f32 [num_rows, size], rows transposed where weights are INT4
// Dispatch (ceil(size / 64), number of rows, 1).
// CPU reference: sigmoid in tests/web-worker/decoder_kernels_test.cpp, within 1e-6.
//@ host_checked
//@ include ../arithmetic.wgsl
override size: u32;
override transposes: u32;

@group(0) @binding(0) var<storage, read> gates: array<f32>;
@group(0) @binding(1) var<storage, read_write> attended: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= size) {
    return;
  }
  let stored = select(id.x, transposed(id.x, size), transposes != 0u);
  attended[id.y * size + stored] /= 1.0 + exp(-gates[id.y * size + id.x]);
}
