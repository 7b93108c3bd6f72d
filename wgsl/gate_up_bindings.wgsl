// Bindings of the kernels that compute tiles of the first half of the experts' FFNs.
struct GroupPlace { first_tile_word: u32, unused_0: u32, unused_1: u32, unused_2: u32 }

@group(0) @binding(0) var<storage, read> upload: array<u32>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> intermediate: array<f32>;
@group(0) @binding(5) var<uniform> place: GroupPlace;

fn x_quad(base: u32, quad: u32, chunk: u32) -> vec4<f32> {
  return x[base + quad * (hidden_size / 32u) + chunk];
}
