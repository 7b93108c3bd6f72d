// An explicit lossy mode: the rows that request it take a speculator's guesses for a layer as true.
// The speculator may know a row's experts before the row reaches their layer. It may also give a
// substitute for a layer's answer until that answer arrives, so that the next layer's call is sent
// while this layer's call is in flight. Rows without a speculator are computed as if they were
// alone, to the bit.
// Speculators are in hub/foresight. Owner: the engine's thread.
// Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", section 4.
#pragma once

#include <optional>
#include <string>

#include "hub/engine/expert_backend.h"
#include "hub/engine/expert_predictor.h"

namespace moex {

// Called layer by layer in ascending order, step by step: choose(), then, while the layer's round
// is in flight, stand_in() and look_ahead().
class ExpertSpeculator {
  public:
    virtual ~ExpertSpeculator() = default;

    // Returns true if this layer's router is skipped: choose() then sees no logits, and the experts
    // that it writes are the only choice. Never true for the first MoE layer of a step.
    virtual bool replaces_router(std::uint32_t) const { return false; }
    // Chooses the experts of a layer. The first MoE layer of a step keeps its own. `expert_ids` and
    // `expert_weights` [num_tokens, top_k], distinct within a row, hold the router's choice, which
    // `seen` also shows. The experts written there are requested.
    virtual void choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                        std::span<float> expert_weights) = 0;
    // Writes a substitute for this layer's answer, [num_tokens, hidden_size]. It is used until the
    // answer arrives, and is then replaced in the rows. Returns false if the next layer must wait.
    // `asked` shows what choose() wrote.
    virtual bool stand_in(const RouteView& asked, std::span<float> y) = 0;
    // Called when there is time to guess the next layer: no thread waits for this call.
    virtual void look_ahead(const RouteView&) {}
    // Returns the units that the next MoE layer will request, after look_ahead(). These hints are
    // certain; the most likely is first. Valid until the next call; empty where nothing is known.
    virtual std::span<const ExpertHint> hints() { return {}; }
};

// A lossy mode that a hub offers by name.
struct ExpertMode {
    std::string name;
    ExpertSpeculator* speculator = nullptr;  // owned by the hub, outlives its engine
    // over the exact model's perplexity; none: not measured
    std::optional<double> perplexity_excess;
};

}  // namespace moex
