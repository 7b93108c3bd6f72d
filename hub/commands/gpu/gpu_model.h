// A package on this machine's GPU, whole: `moex-hub generate --gpu`. One generation at a time.
// There are two of this room: gpu_model.cpp where the build has the worker's part (Vulkan), and
// no_gpu.cpp, which says what is missing, where it has not.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "hub/engine/generation.h"
#include "hub/engine/kv_dtype.h"
#include "hub/model/package/package.h"

namespace moex {

struct GpuModelOptions {
    std::string device;                // "auto", or part of a device's name
    std::uint32_t context_tokens = 0;  // room for keys and values
    std::uint32_t fetch_tokens = 8;    // of a greedy answer, read at once
    KvDtype kv_dtype = KvDtype::f32;   // as in GpuStepsOptions
    // Hears how many bytes of weights are on their way to the GPU.
    std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)> progress;
};

class GpuModel {
  public:
    virtual ~GpuModel() = default;
    virtual const std::string& adapter() const = 0;
    virtual std::uint32_t dispatches_per_token() const = 0;

    // Runs on the calling thread until the answer's end. False of `on_token` and a stop end it as
    // cancelled. Where the request is greedy and asks for no more than tokens, the GPU chooses
    // them; otherwise logits come back and the hub's own sampler draws.
    virtual GenerationEnd generate(const GenerationRequest& request,
                                   const std::function<bool(const SampledToken&)>& on_token,
                                   const std::stop_token& stop) = 0;
};

// unavailable: "auto", and there is no real GPU here, or this build has no part for one.
Result<std::unique_ptr<GpuModel>> open_gpu_model(std::shared_ptr<const ModelPackage> package,
                                                 const GpuModelOptions& options);

}  // namespace moex
