// The model's routers and the norms before them, for predictors that apply a router to the rows of
// another layer.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/kernels/matrix.h"
#include "hub/engine/router.h"
#include "hub/model/package/package.h"

namespace moex {

// Holds the routers of a package and computes their logits.
class RouterGates {
  public:
    // Routers in f32 and bf16 stay mapped from the file; routers in f16 are converted to f32. An
    // error names the tensor that is wrong, or is `unsupported` for a dense model.
    static Result<RouterGates> load(std::shared_ptr<const ModelPackage> package,
                                    ThreadPool& threads);

    const ModelConfig& config() const { return package_->config(); }
    std::span<const std::uint32_t> moe_layers() const { return moe_layers_; }
    // Returns the weights of the norm before a MoE layer's router, [hidden_size].
    std::span<const float> norm(std::uint32_t layer) const { return layers_[layer].norm; }
    // Computes out [num_rows, num_experts] = x [num_rows, hidden_size] · routerᵀ, with the same
    // bits as the engine.
    void logits(std::span<float> out, std::uint32_t layer, std::span<const float> x) const;
    // Returns how the layer's router chooses experts by its logits.
    RouterOptions options(std::uint32_t layer) const;
    ThreadPool& threads() const { return *threads_; }

  private:
    struct Layer {
        WeightMatrix router;
        // `converted`: an f16 router as f32; empty for other routers
        std::vector<float> norm, converted;
        std::vector<float> bias, correction_bias;  // empty if the router has none
    };
    Status load_layer(std::uint32_t layer);
    std::shared_ptr<const ModelPackage> package_;
    ThreadPool* threads_ = nullptr;
    std::vector<Layer> layers_;  // [num_layers]; dense layers have empty members
    std::vector<std::uint32_t> moe_layers_;
};

}  // namespace moex
