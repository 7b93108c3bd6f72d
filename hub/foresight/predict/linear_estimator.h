// The least that can be learned of the next routes: a matrix for each MoE layer behind the first,
// from the quasi-hidden state of the layer before to its router's logits, by ridge regression.
//   logits = router_t · q + weights_t · [q, 1]
// What the router's own term leaves is what is fitted, so that an infinite ridge is the gate on the
// quasi-hidden state. It is measured beside the estimator (`moex-hub predict --calibrate`, `eval
// --experts linear`). No package holds one: it knows less than the estimator, which a package can
// hold, and is larger than it in a model that is (12 M weights of Qwen3-30B-A3B).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "hub/engine/decoder.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/router_gates.h"

namespace moex {

struct LinearEstimator {
    std::uint32_t hidden_size = 0, num_experts = 0;
    // [MoE layers but the first, num_experts, hidden_size + 1], the constant last
    std::vector<float> weights;
    std::span<const float> of(std::uint32_t target) const {
        const std::size_t size = std::size_t{num_experts} * (hidden_size + 1);
        return std::span(weights).subspan(target * size, size);
    }
};

// Least squares of one target: rows of [x, 1] against wanted values. f64, in the order of the rows.
class RidgeFit {
  public:
    RidgeFit(std::size_t num_inputs, std::size_t num_outputs);
    // x [num_inputs], wanted [num_outputs]
    void add(std::span<const float> x, std::span<const float> wanted);
    // Weights [num_outputs, num_inputs + 1] of least Σ (w · [x, 1] - wanted)² + ridge · rows ·
    // |w|², the constant left free; `ridge` above 0.
    std::vector<float> solve(double ridge) const;

  private:
    std::size_t num_inputs_, num_outputs_;  // the constant is one of the inputs here
    double num_rows_ = 0;
    std::vector<double> squares_;   // [num_inputs_, num_inputs_], its lower half
    std::vector<double> products_;  // [num_outputs_, num_inputs_]
};

// What the sums of all targets take while they are fitted: the square of hidden_size for each.
std::uint64_t linear_fit_bytes(const RouterGates& gates);
// Of whole windows of the text, as walk_windows().
Result<LinearEstimator> fit_linear_estimator(Decoder& decoder, ExpertBackend& experts,
                                             const RouterGates& gates, const ExpertProfile& profile,
                                             std::span<const TokenId> tokens,
                                             const WindowOptions& options);

// Leads by one MoE layer; knows nothing of others.
std::unique_ptr<ExpertPredictor> make_linear_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile,
    std::shared_ptr<const LinearEstimator> linear);

}  // namespace moex
