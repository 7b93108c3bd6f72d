// Guesses that are taken for true, for rows that ask for it: which experts a layer is asked,
// decided one MoE layer before, and what a layer answers, stood in for by default vectors until it
// has. The first MoE layer is always asked for what its router chose, and waited for.
// Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", sections 4 and 6;
// choosing among more, true weights and early calls are ours.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "hub/engine/expert_speculator.h"
#include "hub/foresight/predict/estimator.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/linear_estimator.h"
#include "hub/foresight/predict/router_gates.h"

namespace moex {

// Who says which experts a layer is asked, one MoE layer before.
enum class RouteGuess {
    router,        // nobody: the layer's own router, when it is reached
    next_gate,     // its router on this layer's hidden state
    quasi_hidden,  // its router on the quasi-hidden state
    estimator,
    hybrid,  // the estimator where the quasi-hidden state guesses worst, that elsewhere
    // The estimator, and no layer's router but the first's is computed; the answers are
    // estimator's, to the bit.
    router_free,
    linear,  // a matrix a layer; measured by eval, in no package
};

struct Speculation {
    RouteGuess routes = RouteGuess::router;
    // The guessed experts' weights: of the guess, or of the layer's router, which has been reached
    // when they are needed.
    bool true_weights = false;
    // So many experts are guessed, and the layer's router chooses top_k of them, with its weights;
    // 0: top_k.
    std::uint32_t guessed = 0;
    // Default vectors stand in for the answers of this MoE layer, counted from 0, and of every
    // second one behind it, until they come: two rounds are on their way at once. If they stood in
    // for all, still no more than two would be, and twice as many rows would be guesses.
    std::optional<std::uint32_t> early_from = {};
};

// next-gate, quasi-hidden, estimator, hybrid or linear, each as it is, with "+weights" (the
// router's) or
// ":N" (N guessed), or router-free; or early or early:N (from MoE layer N on; 2), alone or behind
// one of those and a plus. invalid_argument names them all.
Result<Speculation> parse_speculation(std::string_view name);
// As parse_speculation() reads it, with all its numbers.
std::string name_of(const Speculation& what);

struct SpeculationSources {
    std::shared_ptr<const RouterGates> gates;
    std::shared_ptr<const ExpertProfile> profile;   // for all but next-gate
    std::shared_ptr<const Estimator> estimator;     // for estimator, hybrid and router-free
    std::shared_ptr<const LinearEstimator> linear;  // for linear
    // MoE layers that hybrid asks the estimator about, counted from 0.
    std::vector<std::uint32_t> estimator_layers;
};

class Speculator : public ExpertSpeculator {
  public:
    // not_found names the source that is missing, and the command that makes it.
    static Result<std::unique_ptr<Speculator>> create(const Speculation& what,
                                                      SpeculationSources sources);

    bool replaces_router(std::uint32_t layer) const override;
    void choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                std::span<float> expert_weights) override;
    bool stand_in(const RouteView& asked, std::span<float> y) override;
    void look_ahead(const RouteView& asked) override;
    // The experts that are guessed, for steps of few rows.
    std::span<const ExpertHint> hints() override;

    // Share of the router's choices that were asked, of a MoE layer counted from 0; 1 where it had
    // no rows yet, or no router said anything. The thread of the steps.
    double hit_rate(std::uint32_t index) const;
    std::span<const std::uint32_t> moe_layers() const { return sources_.gates->moe_layers(); }

  private:
    Speculator(const Speculation& what, SpeculationSources sources);
    void take_guess(const RouteView& seen, std::uint32_t index, std::span<std::uint16_t> expert_ids,
                    std::span<float> expert_weights);
    std::uint32_t index_of(std::uint32_t layer) const;

    Speculation what_;
    SpeculationSources sources_;
    std::unique_ptr<ExpertPredictor> gate_, estimator_;  // null where not needed
    std::vector<float> guess_;                           // of guess_index_, [rows, num_experts]
    std::uint32_t guess_index_ = 0;                      // 0: none
    std::vector<std::uint64_t> pairs_, hits_;            // by MoE layer
    std::vector<ExpertHint> hints_;
    std::vector<std::uint16_t> order_;  // of one row
};

// One row: the top_k of the `guessed` surest, and their weights. `router_logits` is what the
// layer's own router says, read where `what` wants true weights or has more guessed than top_k.
void choose_guessed(const Speculation& what, const ModelConfig& config,
                    std::span<const float> confidence, std::span<const float> router_logits,
                    std::span<std::uint16_t> expert_ids, std::span<float> expert_weights);

}  // namespace moex
