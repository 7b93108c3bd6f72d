// All modes of speculation that were tried. Rows in such a mode request the experts that were
// guessed one MoE layer before, or continue with default vectors until a layer's answer arrives.
// The first MoE layer always requests what its router chose, and is waited for. A hub serves two of
// these modes (hub/foresight/lossy/served_modes.h); tests hold both implementations to the same
// bits. Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", sections 4 and
// 6; choosing among more guessed experts, true weights and early calls are our own additions.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/foresight/linear_estimator.h"
#include "hub/foresight/lossy/served_modes.h"

namespace moex::bench {

// The source of the guess of a layer's experts, which is made one MoE layer before.
enum class RouteGuess {
    router,        // no guess: experts are chosen by the layer's own router
    next_gate,     // guess: the layer's router on the hidden state of the layer before
    quasi_hidden,  // guess: the layer's router on the quasi-hidden state
    estimator,
    hybrid,  // `estimator` for the layers that quasi_hidden guesses worst, else quasi_hidden
    // The same guesses as `estimator`, but no router after the first layer is computed. The answers
    // have the same bits.
    router_free,
    linear,  // the estimator of linear_estimator.h, which no package holds
};

struct Speculation {
    RouteGuess routes = RouteGuess::router;
    // True: the guessed experts get the weights of the layer's own router, which are known when
    // they are needed. False: they get the weights of the guess.
    bool true_weights = false;
    // The number of guessed experts, of which the layer's router chooses top_k, with its weights;
    // 0: top_k.
    std::uint32_t guessed = 0;
    // The first MoE layer, counted from 0, at which rows continue with default vectors until the
    // answers arrive; every second layer after it does the same (EarlyCalls in served_modes.h).
    std::optional<std::uint32_t> early_from = {};
};

// Reads a mode's name. A guess is next-gate, quasi-hidden, estimator, hybrid or linear, each alone,
// with "+weights" (the router's weights) or with ":N" (N guessed experts), or router-free. early or
// early:N (from MoE layer N on; default 2) is used alone or after a guess and a plus:
// "estimator+early:1". Returns invalid_argument for other names; the message lists the valid names.
Result<Speculation> parse_speculation(std::string_view name);
// Returns the name of a mode, with all its numbers, as parse_speculation() reads it.
std::string name_of(const Speculation& what);

// The inputs of all guesses: files of the package, and an estimator that a bench fits to a text.
struct TrialSources {
    // Files of the package. All modes but next-gate need the profile; estimator, hybrid and
    // router-free need the estimator.
    SpeculationSources package;
    std::shared_ptr<const LinearEstimator> linear;  // for linear
    // MoE layers, counted from 0, for which the mode hybrid asks the estimator.
    std::vector<std::uint32_t> estimator_layers;
};

// Applies one mode of speculation to the rows of a decoder.
class Speculator : public ExpertSpeculator {
  public:
    // Returns not_found if a source is missing; the message names the source and the command or
    // option that makes it.
    static Result<std::unique_ptr<Speculator>> create(const Speculation& what,
                                                      TrialSources sources);

    bool replaces_router(std::uint32_t layer) const override;
    void choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                std::span<float> expert_weights) override;
    bool stand_in(const RouteView& asked, std::span<float> y) override;
    void look_ahead(const RouteView& asked) override;
    // Returns the guessed experts as hints; no hints for steps of more than Hints::rows_max rows.
    std::span<const ExpertHint> hints() override;

    // Returns the share of the router's choices that were requested, for a MoE layer counted from
    // 0; 1 if the layer had no rows yet, or if its router is not computed. Called on the thread
    // that runs the steps.
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
    std::unique_ptr<EarlyCalls> early_;  // null if no early_from is set
    // Each is null if the mode does not need it.
    std::unique_ptr<ExpertPredictor> gate_, estimator_;
    // Guess for layer guess_index_, [rows, num_experts].
    std::vector<float> guess_;
    std::uint32_t guess_index_ = 0;            // 0: none
    std::vector<std::uint64_t> pairs_, hits_;  // by MoE layer
    std::vector<ExpertHint> hints_;
    std::vector<std::uint16_t> order_;  // of one row
};

// Chooses for a row top_k experts among the `guessed` most likely ones, and their weights.
// `router_logits` are the logits of the layer's own router; they are read if `what` wants true
// weights or more than top_k guessed experts.
void choose_guessed(const Speculation& what, const ModelConfig& config,
                    std::span<const float> confidence, std::span<const float> router_logits,
                    std::span<std::uint16_t> expert_ids, std::span<float> expert_weights);

}  // namespace moex::bench
