// The interface of a speculator, for lossy modes that a request must choose: its rows then use the
// speculator's guesses of a layer's experts instead of the router's choice. The speculator may know
// a row's experts before the row reaches their layer. It may also give a substitute for a layer's
// answer until that answer arrives, so that the next layer's call is sent while this layer's call
// is in flight. Rows without a speculator have the same bits as in a step that has no other rows.
// Speculators are in hub/foresight. Owner: the engine's thread.
// Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", section 4.
#pragma once

#include <optional>
#include <string>

#include "hub/engine/expert_backend.h"
#include "hub/engine/expert_predictor.h"

namespace moex {

// The decoder calls a speculator for each layer of a step in ascending order: first choose(), then,
// while the layer's round is in flight, stand_in() and look_ahead().
class ExpertSpeculator {
  public:
    virtual ~ExpertSpeculator() = default;

    // Returns true if the router of the given layer is skipped: choose() then sees no logits, and
    // the experts that it writes are the only choice. Never true for the first MoE layer of a step.
    virtual bool replaces_router(std::uint32_t) const { return false; }
    // Chooses the experts of a layer; the first MoE layer of a step keeps the router's choice.
    // `expert_ids` and `expert_weights` [num_tokens, top_k], distinct within a row, hold the
    // router's choice, which `seen` also shows. The speculator overwrites both with the experts to
    // request.
    virtual void choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                        std::span<float> expert_weights) = 0;
    // Writes to `y` a substitute for the answer of this layer's experts, [num_tokens, hidden_size].
    // The rows use the substitute until the answer arrives and replaces it. Returns false if there
    // is no substitute and the next layer must wait for the answer. `asked` contains the experts
    // that choose() wrote.
    virtual bool stand_in(const RouteView& asked, std::span<float> y) = 0;
    // Guesses the experts of the next layer. Called while this layer's round is in flight, when no
    // thread waits for the result.
    virtual void look_ahead(const RouteView&) {}
    // Returns the units that the next MoE layer will request, as look_ahead() determined them.
    // These hints are certain; the most likely unit is first. They stay valid until the next call,
    // and are empty if nothing is known.
    virtual std::span<const ExpertHint> hints() { return {}; }
};

// A lossy mode that a hub offers to its clients by name.
struct ExpertMode {
    std::string name;
    // the mode's speculator; the hub owns it, and it outlives the engine
    ExpertSpeculator* speculator = nullptr;
    // relative increase over the exact model's perplexity; none: not measured
    std::optional<double> perplexity_excess;
};

}  // namespace moex
