// A backend that loses some of another's calls and puts default vectors in their place: what late
// answers would cost, were they not waited for. Which calls are lost, a seed decides.
#pragma once

#include <memory>

#include "hub/engine/expert_backend.h"
#include "hub/foresight/expert_profile.h"

namespace moex {

// `share` of all (row, expert) pairs. `experts` outlives it.
std::unique_ptr<ExpertBackend> make_lost_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile,
                                               double share, std::uint64_t seed);

}  // namespace moex
