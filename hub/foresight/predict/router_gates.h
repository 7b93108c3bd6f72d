// The model's routers and the norms before them, for who asks a router about another layer's rows.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/kernels/matrix.h"
#include "hub/model/package/package.h"

namespace moex {

class RouterGates {
  public:
    // Routers stay mapped where the kernels read their dtype. An error names the tensor.
    static Result<RouterGates> load(std::shared_ptr<const ModelPackage> package,
                                    ThreadPool& threads);

    const ModelConfig& config() const { return package_->config(); }
    std::span<const std::uint32_t> moe_layers() const { return moe_layers_; }
    // What stands before a MoE layer's router, [hidden_size].
    std::span<const float> norm(std::uint32_t layer) const { return layers_[layer].norm; }
    // out [num_rows, num_experts] = x [num_rows, hidden_size] · routerᵀ, the engine's own bits.
    void logits(std::span<float> out, std::uint32_t layer, std::span<const float> x) const;
    ThreadPool& threads() const { return *threads_; }

  private:
    struct Layer {
        WeightMatrix router;
        std::vector<float> norm, converted;  // `converted`: of a router in f16
    };
    Status load_layer(std::uint32_t layer);
    std::shared_ptr<const ModelPackage> package_;
    ThreadPool* threads_ = nullptr;
    std::vector<Layer> layers_;  // [num_layers], empty for dense ones
    std::vector<std::uint32_t> moe_layers_;
};

}  // namespace moex
