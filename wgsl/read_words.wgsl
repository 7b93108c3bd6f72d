// Measures the memory bandwidth that a kernel can reach: reads a buffer once and stores almost nothing. It is the bound
// for a GEMV that is limited by memory (bench/kernel_bench).
//   @binding(0) words  read        u32x4, num_workgroups * 4096 of them
//   @binding(1) sums   read_write  u32 [num_workgroups]
// Dispatch (number of 64 KiB blocks, 1, 1), 256 threads of sixteen 16-byte reads each.
const reads_per_thread: u32 = 16u;

@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let at = group.x * 4096u + thread;
  let a = ((words[at] ^ words[at + 256u]) + (words[at + 512u] ^ words[at + 768u]))
        ^ ((words[at + 1024u] ^ words[at + 1280u]) + (words[at + 1536u] ^ words[at + 1792u]));
  let b = ((words[at + 2048u] ^ words[at + 2304u]) + (words[at + 2560u] ^ words[at + 2816u]))
        ^ ((words[at + 3072u] ^ words[at + 3328u]) + (words[at + 3584u] ^ words[at + 3840u]));
  let sum = a + b;

  // This condition is never true for buffers of zeros or random words. It keeps a compiler from removing the reads.
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x9e3779b9u) {
    sums[group.x] = sum.x;
  }
}
