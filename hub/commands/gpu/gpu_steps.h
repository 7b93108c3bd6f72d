// Runs the engine's steps on this machine's GPU: `moex-hub serve --gpu`. The GPU computes
// embeddings, attention over the pages of all sequences, routers and LM head. It also computes the
// experts, or the engine's ExpertBackend computes them after each layer's router. The hub draws
// tokens from logits that are read back. A GPU that is lost during a step is opened again with its
// weights, and the engine computes the kept sequences once more, with the same bits. If no GPU can
// be opened, or if one is lost again before it has ended a step, the hub's cores compute from then
// on. There are two implementations: gpu_steps.cpp for builds with the worker's part (Vulkan), and
// no_gpu.cpp for other builds, which reports the missing part.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hub/engine/step_device.h"
#include "hub/model/package/package.h"

namespace moex {

namespace gpu {
class Device;
}
class ExpertForesight;
class SpanBackend;

struct GpuStepsOptions {
    std::string device;          // name of the GPU: "auto", an index, or part of a device's name
    bool holds_experts = false;  // the GPU computes the experts; false: the ExpertBackend does
    std::uint32_t sequences_max = 16;
    std::uint32_t step_rows_max = 256;
    // Largest number of micro-batches of a step whose experts another backend computes. Each
    // micro-batch has its own memory on the GPU, and all share the KV cache.
    std::uint32_t micro_batches_max = 1;
    std::uint64_t memory_bytes_max = 0;  // limit for GPU memory; 0: all free memory
    // Limit for the memory of keys and values, and of recurrent states. 0: enough for
    // `sequences_max` sequences of 8,192 tokens and for one whole context, within a quarter of what
    // the weights leave free.
    std::uint64_t kv_bytes_max = 0;
    // For a model with recurrent states, the memory of their copies, from which texts that begin
    // alike go on; 0: a quarter of kv_bytes_max, or as many copies as sequences within a quarter of
    // the free memory. Without `keeps_states` there are none.
    std::uint64_t state_bytes_max = 0;
    bool keeps_states = true;
    // Format of the KV cache on the GPU. int8 means u8 codes with an f16 scale and zero for each
    // token of a KV head. The int8 cache of the CPU cores has another layout.
    KvDtype kv_dtype = KvDtype::f32;
    // Runs keep-alive work between passes, while no other program uses the GPU, so that the GPU's
    // clock rate stays high (web-worker/gpu/vulkan/vulkan_awake.h).
    bool stay_awake = false;
    // Makes room for spans on the GPU, for a step at a worker (GpuSteps::use_spans()).
    bool uses_spans = false;
    // Called during loading with the bytes of weights that were copied to the GPU so far, and with
    // the bytes of all weights.
    std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)> progress;
    // Returns the device that computes if the GPU is lost and cannot be opened again. Called at
    // that time, on the engine's thread. An empty function: there is no such device. The returned
    // device outlives the GpuSteps.
    std::function<Result<StepDevice*>()> cores;
    // Opens the GPU. An empty function means open_gpu_device() (hub/commands/gpu/gpu_device.h). One
    // thread at a time uses and destroys a device, and runs the functions that the device posts.
    std::function<Result<std::unique_ptr<gpu::Device>>(
        const std::string& device, std::function<void(std::function<void()>)> post)>
        open_device;
};

class GpuSteps : public StepDevice {
  public:
    // Returns the name of the current GPU. The name changes when another device replaces a lost
    // GPU. May be called on any thread.
    virtual std::string adapter() const = 0;
    // Returns the options of the engine's KvCache. Its pages are stored on the GPU.
    virtual KvCacheOptions kv_pages() const = 0;
    virtual std::uint64_t kv_bytes() const = 0;
    virtual std::uint64_t weight_bytes() const = 0;
    // Sets the predictor of experts. It is called once per layer and micro-batch while the round is
    // in flight, if another backend computes the experts and uses hints. The predictor gets routes
    // and the rows that routers read, but no residual and no logits. It outlives this object; null:
    // no predictor. The caller itself sets the predictor of the CPU cores
    // (`GpuStepsOptions::cores`).
    virtual void foresee_with(ExpertForesight* foresight) = 0;
    // Sets the workers that compute consecutive layers whole (hub/engine/span_backend.h), if
    // GpuStepsOptions::uses_spans is set and another backend computes the experts. `spans` outlives
    // this object; null: none. The caller itself sets the spans of the CPU cores.
    virtual void use_spans(SpanBackend* spans) = 0;
};

// Returns the description of the device that `name` selects. Errors are those of open_gpu_steps().
Result<std::string> find_gpu(const std::string& name);

// Opens the GPU and loads the model. Returns unavailable if "auto" finds no real GPU on this
// machine, or if this build has no GPU part. Returns no_space if the model is larger than the GPU's
// memory; the message names the needed and the existing size. `threads` outlives the result.
Result<std::unique_ptr<GpuSteps>> open_gpu_steps(std::shared_ptr<const ModelPackage> package,
                                                 ThreadPool& threads,
                                                 const GpuStepsOptions& options);

}  // namespace moex
