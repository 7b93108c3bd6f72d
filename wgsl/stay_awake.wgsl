// Nothing, for as long as the host has nothing to compute: a GPU that rests between small pieces of work falls back to
// a fraction of its clock (web-worker/gpu/vulkan/vulkan_awake.h). Ends when the host has let go of it, or on its own.
//   @binding(0) words  read_write  [0] how many of these the host let go of, [1] how many began, [2] nobody reads it
// Dispatch (1, 1, 1). `looks`: at words[0], at the most.
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
