// The estimator: a small network that predicts the router logits of the next MoE layer from the
// quasi-hidden state of a layer. All layers share one network, but each target layer has its own
// embedding and head (index t).
//   z = projection · q + embedding_t        u = z + outer · silu(inner · z + b) + b'
//   logits = router_t · q + head_t · LayerNorm(u) + b_t
// The head starts at zero, so that an untrained estimator gives the same logits as the target
// layer's router on the quasi-hidden state.
// Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", section 6.1 and
// appendix A; the router's own term and one head per layer are ours.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/router_gates.h"
#include "hub/model/package/side_file.h"

namespace moex {

struct EstimatorShape {
    std::uint32_t hidden_size = 0, num_experts = 0;
    std::uint32_t num_targets = 0;  // number of target layers: all MoE layers except the first
    std::uint32_t width = 160, inner = 160;
};

// The estimator's network: its parameters, forward pass and gradients.
class Estimator {
  public:
    enum Part {
        projection,    // [width, hidden_size]
        embedding,     // [num_targets, width]
        inner_weight,  // [inner, width]
        inner_bias,
        outer_weight,  // [width, inner]
        outer_bias,
        norm_weight,  // [width]
        norm_bias,
        head_weight,  // [num_targets, num_experts, width]
        head_bias,    // [num_targets, num_experts]
        num_parts
    };

    // Initialises the parameters at random from `seed`.
    Estimator(EstimatorShape shape, std::uint64_t seed);
    // Loads the estimator of a package. The error is not_found if the package has no estimator;
    // other errors name the tensor that is wrong.
    static Result<Estimator> load(const ModelPackage& package);
    std::vector<SideTensor> to_side_tensors() const;

    const EstimatorShape& shape() const { return shape_; }
    std::span<float> parameters() { return parameters_; }
    std::span<const float> parameters() const { return parameters_; }
    // Returns the values of one part (such as the projection) from `values`, which have the layout
    // of all parameters, as gradients have, too.
    template <typename T>
    std::span<T> part(std::span<T> values, Part part) const {
        return values.subspan(offsets_[part], offsets_[part + 1] - offsets_[part]);
    }
    std::span<const float> part(Part part) const { return this->part(parameters(), part); }

    // A range of rows of one target layer: for the rows [first_row, first_row + num_rows) of x, the
    // logits of layer `target` are predicted.
    struct Block {
        std::uint32_t target = 0, first_row = 0, num_rows = 0;
    };
    // The intermediate results of a forward pass, which backward() reads.
    struct Pass {
        std::vector<float> z, a, s, u, normed, unit, scale;
        // [num_rows, num_experts], predicted logits without the router's term
        std::vector<float> logits;
    };
    // Computes the predictions for the quasi-hidden states x [num_rows, hidden_size]. The blocks
    // cover all rows of x, and each block has a different target layer.
    void forward(Pass& pass, std::span<const float> x, std::span<const Block> blocks,
                 ThreadPool& threads) const;
    // Overwrites `gradient` with the gradients of all parameters, given the gradient of the logits.
    void backward(std::span<float> gradient, const Pass& pass, std::span<const float> x,
                  std::span<const float> logit_gradient, std::span<const Block> blocks,
                  ThreadPool& threads) const;

  private:
    explicit Estimator(EstimatorShape shape);
    std::vector<std::uint64_t> shape_of(Part part) const;
    EstimatorShape shape_;
    std::array<std::size_t, num_parts + 1> offsets_{};
    std::vector<float> parameters_;
};

// Makes a predictor that uses the estimator. It predicts only the MoE layer after the one that is
// seen; predict() returns false for all other layers.
std::unique_ptr<ExpertPredictor> make_estimator_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile,
    std::shared_ptr<const Estimator> estimator);

}  // namespace moex
