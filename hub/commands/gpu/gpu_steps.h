// The engine's steps on this machine's GPU: `moex-hub serve --gpu`. Embeddings, attention over the
// pages of all sequences, router and LM head are there; experts too, or they are asked of the
// engine's ExpertBackend after each layer's router. Tokens are drawn by the hub from logits that
// come back.
// A GPU that is lost in the middle is opened again, with the weights, and the engine computes what
// it kept once more: the same bits. Where none comes, or one is lost again before it has ended a
// step, the hub's cores compute from then on.
// There are two of this: gpu_steps.cpp where the build has the worker's part (Vulkan), and
// no_gpu.cpp, which says what is missing, where it has not.
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

struct GpuStepsOptions {
    std::string device;          // "auto", an index, or part of a device's name
    bool holds_experts = false;  // otherwise they are asked of the ExpertBackend
    std::uint32_t sequences_max = 16;
    std::uint32_t step_rows_max = 256;
    // Of a step whose experts are elsewhere; each has some of the GPU's memory, all share the
    // cache.
    std::uint32_t micro_batches_max = 1;
    std::uint64_t memory_bytes_max = 0;  // of the GPU's; 0: what is free
    // Of keys and values. 0: for sequences_max of the whole context, or what the GPU leaves.
    std::uint64_t kv_bytes_max = 0;
    // int8: u8 codes with an f16 scale and zero for each KV head's token, not the cores' codes
    KvDtype kv_dtype = KvDtype::f32;
    // It computes between passes while nobody else uses it, so that its clock stays up
    // (web-worker/gpu/vulkan/vulkan_awake.h).
    bool stay_awake = false;
    // Hears how many bytes of weights are on their way to the GPU.
    std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)> progress;
    // Who computes when the GPU is lost and no other comes; asked on the engine's thread, once it
    // did. Empty: nobody. Outlives the steps.
    std::function<Result<StepDevice*>()> cores;
    // Empty: open_gpu_device() (hub/commands/gpu/gpu_device.h). Devices are used, and destroyed, by
    // one thread at a time, which runs what they post.
    std::function<Result<std::unique_ptr<gpu::Device>>(
        const std::string& device, std::function<void(std::function<void()>)> post)>
        open_device;
};

class GpuSteps : public StepDevice {
  public:
    // From any thread; another one's name once another came.
    virtual std::string adapter() const = 0;
    // What the engine's KvCache has to be: pages that lie on the GPU.
    virtual KvCacheOptions kv_pages() const = 0;
    virtual std::uint64_t kv_bytes() const = 0;
    virtual std::uint64_t weight_bytes() const = 0;
    // Asked where experts are elsewhere, once per layer and part, while the round is on its way and
    // the backend has a use for hints. What it sees are routes, and rows as routers read them: no
    // residual, no logits. It outlives this; null: nobody. Not when the cores took over, which are
    // told by who gives them.
    virtual void foresee_with(ExpertForesight* foresight) = 0;
};

// The device that `name` means, in words; errors as below.
Result<std::string> find_gpu(const std::string& name);

// unavailable: "auto", and there is no real GPU here, or this build has no part for one. no_space:
// the model is larger than the GPU; both sizes are named. `threads` outlives what is returned.
Result<std::unique_ptr<GpuSteps>> open_gpu_steps(std::shared_ptr<const ModelPackage> package,
                                                 ThreadPool& threads,
                                                 const GpuStepsOptions& options);

}  // namespace moex
