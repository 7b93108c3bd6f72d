// Who takes guesses of a layer for true: an explicit lossy mode of the rows that ask for it. Which
// experts a row meets may be known before its layer is reached, and what a layer answers may be
// stood in for until it has answered, so that the next layer's call leaves while its own is on its
// way. Rows without a speculator are computed as if none were beside them, to the bit.
// Speculators live in hub/foresight. Owner: the engine's thread.
// Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", section 4.
#pragma once

#include <optional>
#include <string>

#include "hub/engine/expert_backend.h"
#include "hub/engine/expert_predictor.h"

namespace moex {

// Asked layer by layer in ascending order, step by step: choose(), then, while the layer's round is
// on its way, stand_in() and look_ahead().
class ExpertSpeculator {
  public:
    virtual ~ExpertSpeculator() = default;

    // Whether this layer's router is left out: choose() then sees no logits of it, and what it
    // writes is all that is known. Never of a step's first MoE layer.
    virtual bool replaces_router(std::uint32_t) const { return false; }
    // The first MoE layer of a step keeps its own. `expert_ids` and `expert_weights` [num_tokens,
    // top_k], distinct within a row, are what the router chose and `seen` shows; what is written
    // there is what will be asked.
    virtual void choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                        std::span<float> expert_weights) = 0;
    // What stands in for this layer's answer, [num_tokens, hidden_size], until that is there, and
    // leaves the rows again when it comes. False: the next layer waits. `asked` shows what
    // choose() wrote.
    virtual bool stand_in(const RouteView& asked, std::span<float> y) = 0;
    // Time to guess the next layer: nobody waits for it.
    virtual void look_ahead(const RouteView&) {}
    // What the next MoE layer will be asked for, after look_ahead(): hints that come true, the
    // surest first. Valid until the next call; empty where nothing is known.
    virtual std::span<const ExpertHint> hints() { return {}; }
};

// A lossy way that a hub offers by name.
struct ExpertWay {
    std::string name;
    ExpertSpeculator* speculator = nullptr;   // the hub's, outlives its engine
    std::optional<double> perplexity_excess;  // over the exact model's, measured; none: it was not
};

}  // namespace moex
