// A backend that loses a share of the expert calls, to measure what lost answers cost a text. The
// expert's default vector substitutes for each lost answer.
#pragma once

#include <memory>

#include "hub/engine/expert_backend.h"
#include "hub/foresight/predict/expert_profile.h"

namespace moex::bench {

// Returns a backend that loses `share` of all (row, expert) pairs, chosen at random with `seed`.
// `experts` must outlive it.
std::unique_ptr<ExpertBackend> make_lost_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile,
                                               double share, std::uint64_t seed);

}  // namespace moex::bench
