// A small network that corrects the next gate: from the quasi-hidden state of a layer to the router
// logits of the MoE layer behind it. All layers share it, told apart by an embedding and a head.
//   z = projection · q + embedding_t        u = z + outer · silu(inner · z + b) + b'
//   logits = router_t · q + head_t · LayerNorm(u) + b_t
// The head begins at zero, so that an untrained estimator is the gate on the quasi-hidden state.
// Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", section 6.1 and
// appendix A; the router's own term and a head for each layer are ours.
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
    std::uint32_t num_targets = 0;  // MoE layers but the first
    std::uint32_t width = 160, inner = 160;
};

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

    Estimator(EstimatorShape shape, std::uint64_t seed);
    // not_found where the package has none. An error names the tensor.
    static Result<Estimator> load(const ModelPackage& package);
    std::vector<SideTensor> to_side_tensors() const;

    const EstimatorShape& shape() const { return shape_; }
    std::span<float> parameters() { return parameters_; }
    std::span<const float> parameters() const { return parameters_; }
    // A part of `values`, which are laid out like the parameters (gradients are).
    template <typename T>
    std::span<T> part(std::span<T> values, Part part) const {
        return values.subspan(offsets_[part], offsets_[part + 1] - offsets_[part]);
    }
    std::span<const float> part(Part part) const { return this->part(parameters(), part); }

    // Rows [first_row, first_row + num_rows) that ask about one target layer.
    struct Block {
        std::uint32_t target = 0, first_row = 0, num_rows = 0;
    };
    // What backward() needs of a forward().
    struct Pass {
        std::vector<float> z, a, s, u, normed, unit, scale;
        std::vector<float> logits;  // [num_rows, num_experts], without the router's term
    };
    // x [num_rows, hidden_size]: quasi-hidden states. Blocks cover its rows, targets differ.
    void forward(Pass& pass, std::span<const float> x, std::span<const Block> blocks,
                 ThreadPool& threads) const;
    // Gradients of all parameters, written over `gradient`, from those of the logits.
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

// Leads by one MoE layer; knows nothing of others.
std::unique_ptr<ExpertPredictor> make_estimator_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile,
    std::shared_ptr<const Estimator> estimator);

}  // namespace moex
