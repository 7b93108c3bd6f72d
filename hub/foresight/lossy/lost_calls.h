// Backends that put default vectors in the place of another's answers: of those that were not
// waited for (ExpertBatch::patience), and, as a trial of what these cost, of some that a seed
// chooses.
#pragma once

#include <memory>

#include "hub/engine/expert_backend.h"
#include "hub/foresight/predict/expert_profile.h"

namespace moex {

// `share` of all (row, expert) pairs. `experts` outlives it.
std::unique_ptr<ExpertBackend> make_lost_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile,
                                               double share, std::uint64_t seed);

// Where a row's patience ended before an answer came, `experts` leaves that out and this adds the
// expert's default vector, weighted as the answer would be. Anything else is handed on as it is.
// `experts` outlives it.
std::unique_ptr<ExpertBackend> make_late_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile);

}  // namespace moex
