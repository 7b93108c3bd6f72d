// Speculation, all modes that were tried: rows that ask for it request the experts that were
// guessed one MoE layer before, or continue with default vectors until a layer's answer arrives.
// The first MoE layer always requests what its router chose, and is waited for. A hub serves two of
// these modes (hub/foresight/lossy/served_modes.h); tests hold both implementations to the same
// bits.
// Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", sections 4 and 6;
// choosing among more, true weights and early calls are ours.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/foresight/linear_estimator.h"
#include "hub/foresight/lossy/served_modes.h"

namespace moex::bench {

// The source of the guess, made one MoE layer before.
enum class RouteGuess {
    router,        // no guess: the layer's own router
    next_gate,     // the layer's router on the hidden state of the layer before
    quasi_hidden,  // the layer's router on the quasi-hidden state
    estimator,
    hybrid,  // the estimator for the layers that quasi-hidden guesses worst, else quasi-hidden
    // The estimator, without computing any router after the first layer; the answers have the bits
    // of `estimator`.
    router_free,
    linear,  // linear_estimator.h, which no package holds
};

struct Speculation {
    RouteGuess routes = RouteGuess::router;
    // The weights of the guessed experts: those of the layer's router, which is known when they are
    // needed; false: those of the guess.
    bool true_weights = false;
    // The number of guessed experts, of which the layer's router chooses top_k, with its weights;
    // 0: top_k.
    std::uint32_t guessed = 0;
    // The first MoE layer, counted from 0, whose answers default vectors substitute until they
    // arrive; every second layer after it does the same (EarlyCalls in served_modes.h).
    std::optional<std::uint32_t> early_from = {};
};

// Reads a mode's name. A guess is next-gate, quasi-hidden, estimator, hybrid or linear, each alone,
// with "+weights" (the router's weights) or with ":N" (N guessed experts), or router-free. early or
// early:N (from MoE layer N on; 2) is used alone or after a guess and a plus: "estimator+early:1".
// invalid_argument: the message lists the names.
Result<Speculation> parse_speculation(std::string_view name);
// Returns the name that parse_speculation() reads, with all numbers.
std::string name_of(const Speculation& what);

// The inputs of all guesses: the package's own, and what a bench fits to a text.
struct TrialSources {
    // The profile serves all but next-gate; the estimator serves estimator, hybrid and router-free.
    SpeculationSources package;
    std::shared_ptr<const LinearEstimator> linear;  // for linear
    // MoE layers, counted from 0, that hybrid asks the estimator about.
    std::vector<std::uint32_t> estimator_layers;
};

// Applies a mode to the rows of a decoder.
class Speculator : public ExpertSpeculator {
  public:
    // not_found: the message names the missing source and the command or option that makes it.
    static Result<std::unique_ptr<Speculator>> create(const Speculation& what,
                                                      TrialSources sources);

    bool replaces_router(std::uint32_t layer) const override;
    void choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                std::span<float> expert_weights) override;
    bool stand_in(const RouteView& asked, std::span<float> y) override;
    void look_ahead(const RouteView& asked) override;
    // Returns the guessed experts as hints; empty for steps of more than Hints::rows_max rows.
    std::span<const ExpertHint> hints() override;

    // Returns the share of the router's choices that were requested, for a MoE layer counted from
    // 0; 1 if the layer had no rows yet, or if its router is not computed. The thread of the steps.
    double hit_rate(std::uint32_t index) const;
    std::span<const std::uint32_t> moe_layers() const {
        return sources_.package.gates->moe_layers();
    }

  private:
    Speculator(const Speculation& what, TrialSources sources);
    void take_guess(const RouteView& seen, std::uint32_t index, std::span<std::uint16_t> expert_ids,
                    std::span<float> expert_weights);

    Speculation what_;
    TrialSources sources_;
    std::unique_ptr<EarlyCalls> early_;                  // null unless early_from is set
    std::unique_ptr<ExpertPredictor> gate_, estimator_;  // null if not needed
    std::vector<float> guess_;                           // of guess_index_, [rows, num_experts]
    std::uint32_t guess_index_ = 0;                      // 0: none
    std::vector<std::uint64_t> pairs_, hits_;            // by MoE layer
    std::vector<ExpertHint> hints_;
    std::vector<std::uint16_t> order_;  // of one row
};

// Chooses for a row the top_k of the `guessed` surest experts, and their weights. `router_logits`
// are the logits of the layer's own router; they are read if `what` wants true weights or more than
// top_k guessed experts.
void choose_guessed(const Speculation& what, const ModelConfig& config,
                    std::span<const float> confidence, std::span<const float> router_logits,
                    std::span<std::uint16_t> expert_ids, std::span<float> expert_weights);

}  // namespace moex::bench
