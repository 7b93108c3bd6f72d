// The linear estimator: the simplest predictor that learns. It has a matrix for each MoE layer
// after the first, from the quasi-hidden state of the layer before to the router's logits, fitted
// by ridge regression.
//   logits = router_t · q + weights_t · [q, 1]
// The fit is to the difference from the router's own term, so that an infinite ridge gives the next
// gate on the quasi-hidden state. The benches measure it beside the estimator. No package holds a
// linear estimator: its recall is lower than the estimator's, and in a large model it has more
// weights (12 M for Qwen3-30B-A3B).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "hub/commands/calibrate.h"
#include "hub/engine/decoder.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/router_gates.h"

namespace moex::bench {

struct LinearEstimator {
    std::uint32_t hidden_size = 0, num_experts = 0;
    // [MoE layers but the first, num_experts, hidden_size + 1], the constant term last
    std::vector<float> weights;
    std::span<const float> of(std::uint32_t target) const {
        const std::size_t size = std::size_t{num_experts} * (hidden_size + 1);
        return std::span(weights).subspan(target * size, size);
    }
};

// Fits wanted values by least squares as a linear function of [x, 1]. Computes in f64, in the order
// in which rows are added.
class RidgeFit {
  public:
    RidgeFit(std::size_t num_inputs, std::size_t num_outputs);
    // Adds one row: x [num_inputs], wanted [num_outputs].
    void add(std::span<const float> x, std::span<const float> wanted);
    // Returns the weights [num_outputs, num_inputs + 1] that minimise Σ (w · [x, 1] - wanted)² +
    // ridge · rows · |w|², without a penalty on the constant. Requires `ridge` above 0.
    std::vector<float> solve(double ridge) const;

  private:
    std::size_t num_inputs_, num_outputs_;  // num_inputs_ includes the constant
    double num_rows_ = 0;
    std::vector<double> squares_;  // sums of x xᵀ, [num_inputs_, num_inputs_], only the lower half
    std::vector<double> products_;  // [num_outputs_, num_inputs_]
};

// Returns the bytes of memory that the fit of all layers needs for its sums: hidden_size² for each
// layer.
std::uint64_t linear_fit_bytes(const RouterGates& gates);
// Fits a linear estimator to whole windows of a text, which are read as by walk_windows().
Result<LinearEstimator> fit_linear_estimator(Decoder& decoder, ExpertBackend& experts,
                                             const RouterGates& gates, const ExpertProfile& profile,
                                             std::span<const TokenId> tokens,
                                             const WindowOptions& options);

// Makes a predictor of the experts of the next MoE layer; predict() returns false for all other
// layers.
std::unique_ptr<ExpertPredictor> make_linear_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile,
    std::shared_ptr<const LinearEstimator> linear);

// Fits a linear estimator to the first windows of a text file, at most 32. Returns unsupported if
// the sums would take more than 512 MiB, as those of a model with large rows do.
Result<std::shared_ptr<const LinearEstimator>> fit_linear_on(
    const CalibrationText& source, const Tokenizer& tokenizer, Decoder& decoder,
    ExpertBackend& experts, KvDtype kv_dtype, const RouterGates& gates,
    const ExpertProfile& profile);

}  // namespace moex::bench
