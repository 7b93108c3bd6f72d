// Runs a whole package on this machine's GPU: `moex-hub generate --gpu`. It runs one generation at
// a time. There are two implementations: gpu_model.cpp for builds with the worker's part (Vulkan),
// and no_gpu.cpp for other builds, which reports the missing part.
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
    std::string device;                // name of the GPU: "auto", or part of a device's name
    std::uint32_t context_tokens = 0;  // capacity of the KV cache in tokens
    std::uint32_t fetch_tokens = 8;    // tokens of a greedy answer that one read-back returns
    KvDtype kv_dtype = KvDtype::f32;   // as in GpuStepsOptions
    // Called during loading with the bytes of weights that were copied to the GPU so far, and with
    // the bytes of all weights.
    std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)> progress;
};

class GpuModel {
  public:
    virtual ~GpuModel() = default;
    virtual const std::string& adapter() const = 0;
    virtual std::uint32_t dispatches_per_token() const = 0;

    // Runs one generation on the calling thread until the answer ends. `on_token` returns false to
    // cancel the generation, and a stop request cancels it too. If the request is greedy and needs
    // only tokens, the GPU chooses them. Otherwise logits are read back, and the hub's sampler
    // draws.
    virtual GenerationEnd generate(const GenerationRequest& request,
                                   const std::function<bool(const SampledToken&)>& on_token,
                                   const std::stop_token& stop) = 0;
};

// Opens the model on the GPU. Returns the error unavailable if "auto" finds no real GPU on this
// machine, or if this build has no GPU part.
Result<std::unique_ptr<GpuModel>> open_gpu_model(std::shared_ptr<const ModelPackage> package,
                                                 const GpuModelOptions& options);

}  // namespace moex
