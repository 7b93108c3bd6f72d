// An interface that predicts which experts the next MoE layer may request, while this layer's
// experts are computed. Hints change no bit of an answer. Implementations are in hub/foresight.
// Owner: the engine's thread.
#pragma once

#include "hub/engine/expert_backend.h"
#include "hub/engine/expert_predictor.h"

namespace moex {

class ExpertForesight {
  public:
    virtual ~ExpertForesight() = default;
    // Returns hints for the layer after `seen`, the most likely first. They stay valid until the
    // next call.
    virtual std::span<const ExpertHint> foresee(const RouteView& seen) = 0;
};

}  // namespace moex
