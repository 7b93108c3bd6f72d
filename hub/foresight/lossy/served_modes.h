// The two lossy modes that a hub serves, as speculators of the decoder. Rows use a mode only if
// their request asks for it; the other rows of a step keep every bit. The first MoE layer of a step
// always requests the experts that its router chose, and the next layer waits for the answers of
// this layer.
//
//   early calls       Default vectors substitute for a layer's answer until that answer arrives, so
//                     that the next layer's calls leave before. Two rounds are in flight at once
//                     (+n: the calls of MoE layer n leave, -n: the decoder waits for its answers):
//                       exact     +0 -0  +1 -1  +2 -2  +3 -3  +4 -4
//                       early:1   +0 -0  +1 +2 -1 -2  +3 +4 -3 -4
//                     The request's name is "speculative", the reported name is "early:1".
//   guessed experts   A layer asks for the experts that the estimator guessed one MoE layer before,
//                     whatever its own router says later. A worker that loads experts on demand
//                     gets the guess as a hint that is always right. No round is saved.
//                     The name is "estimator".
//
// Other sources of guesses and other first layers were measured and were worse;
// bench/foresight/speculation.h has them. Source: "Speculating Experts Accelerates Inference for
// Mixture-of-Experts", sections 4 and 6; early calls are ours.
#pragma once

#include <memory>
#include <vector>

#include "hub/engine/expert_speculator.h"
#include "hub/foresight/predict/speculation_sources.h"

namespace moex {

// Substitutes default vectors for the answers of MoE layer `first_layer`, counted from 0 among the
// MoE layers, and of every second MoE layer after it. If this were done in all layers instead of
// every second one, still no more than two rounds would be in flight, but twice as many layers
// would read guessed rows.
class EarlyCalls : public ExpertSpeculator {
  public:
    // The error is not_found if the package has no default vectors.
    static Result<std::unique_ptr<EarlyCalls>> create(SpeculationSources sources,
                                                      std::uint32_t first_layer);

    void choose(const RouteView&, std::span<std::uint16_t>, std::span<float>) override {}
    bool stand_in(const RouteView& asked, std::span<float> y) override;

  private:
    EarlyCalls(SpeculationSources sources, std::uint32_t first_layer);

    const SpeculationSources sources_;
    const std::uint32_t first_layer_;
};

// Replaces a router's choice of experts by the estimator's guess, which was made one MoE layer
// before. The guess gives the experts and their weights.
class GuessedExperts : public ExpertSpeculator {
  public:
    // The error is not_found if the package has no default vectors or no estimator.
    static Result<std::unique_ptr<GuessedExperts>> create(SpeculationSources sources);

    void choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                std::span<float> expert_weights) override;
    bool stand_in(const RouteView&, std::span<float>) override { return false; }
    void look_ahead(const RouteView& asked) override;
    // Returns the guessed experts of the next MoE layer as hints; empty for steps of more than
    // Hints::rows_max rows.
    std::span<const ExpertHint> hints() override;

  private:
    explicit GuessedExperts(SpeculationSources sources);

    const SpeculationSources sources_;
    std::unique_ptr<ExpertPredictor> estimator_;
    // guessed router logits of MoE layer guess_index_, [num_rows, num_experts]
    std::vector<float> guess_;
    // MoE layer of guess_, counted from 0 among the MoE layers; 0: no guess
    std::uint32_t guess_index_ = 0;
    std::vector<ExpertHint> hints_;
    std::vector<std::uint16_t> order_;  // scratch buffer of append_hints()
};

// Returns the index of `layer` among the MoE layers, counted from 0.
std::uint32_t moe_index_of(const RouterGates& gates, std::uint32_t layer);

}  // namespace moex
