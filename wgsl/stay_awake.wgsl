// Keeps the GPU busy until the host has other work, because a GPU that rests between small pieces of work lowers its
// clock to a fraction (web-worker/gpu/vulkan/vulkan_awake.h). The kernel ends when the host releases it, or after
// `looks` polls of words[0].
//   @binding(0) words  read_write  [0] number of released kernels, [1] number of started kernels, [2] unused result
// Dispatch (1, 1, 1).
override looks: u32;

const steps_between_looks: u32 = 64u;

@group(0) @binding(0) var<storage, read_write> words: array<atomic<u32>>;

@compute @workgroup_size(1)
fn main() {
  let mine = atomicLoad(&words[1]) + 1u;
  atomicStore(&words[1], mine);

  var noise = mine;
  for (var look = 0u; look < looks; look = look + 1u) {
    if (atomicLoad(&words[0]) >= mine) {
      break;
    }
    for (var step = 0u; step < steps_between_looks; step = step + 1u) {
      noise = noise * 1664525u + 1013904223u;
    }
  }

  atomicStore(&words[2], noise);
}
