// Who says what the next MoE layer may be asked for, while this one's experts are. Hints change no
// bit of an answer. Lives in hub/foresight. Owner: the engine's thread.
#pragma once

#include "hub/engine/expert_backend.h"
#include "hub/engine/expert_predictor.h"

namespace moex {

class ExpertForesight {
  public:
    virtual ~ExpertForesight() = default;
    // The surest first; valid until the next call.
    virtual std::span<const ExpertHint> foresee(const RouteView& seen) = 0;
};

}  // namespace moex
