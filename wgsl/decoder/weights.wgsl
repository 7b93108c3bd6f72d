// Common parts of the kernels that read weights. 16 bytes hold a chunk of ${inputs} weights; a lane reads a chunk at
// once.
//@ include ../arithmetic.wgsl
//@ for i in 0..mxfp4
//@ include ../mxfp4.wgsl
//@ end
const chunk_inputs: u32 = ${inputs}u;

//@ for i in 0..bf16
fn bf16_quad(words: vec2<u32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
}
//@ end
// Returns the position of quad `quad` (four inputs) of chunk `chunk` in a row of `size` inputs. For INT4 weights, rows
// are transposed: the first quads of all chunks are stored first, then all second quads. Lanes take neighbouring
// chunks, so they read neighbouring memory. For other types of weights, the inputs of a row are in order.
fn quad_at(size: u32, quad: u32, chunk: u32) -> u32 {
//@ for i in 0..int4
  return quad * (size / 32u) + chunk;
//@ end
//@ for i in 0..wide
  return chunk * (chunk_inputs / 4u) + quad;
//@ end
}
