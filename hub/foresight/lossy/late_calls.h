// An expert backend that substitutes default vectors for answers that are late. A request may limit
// the time that a row waits for its expert calls (ExpertBatch::patience, `moex.late_ms` of the
// API). The wrapped backend then completes the round without the late answers and lists their (row,
// expert) pairs.
#pragma once

#include <memory>

#include "hub/engine/expert_backend.h"
#include "hub/foresight/predict/expert_profile.h"

namespace moex {

// Wraps `experts`: for each late pair that `experts` lists, adds the expert's default vector,
// weighted as the answer would be. Batches without a latency budget pass unchanged. `experts` must
// outlive the returned backend.
std::unique_ptr<ExpertBackend> make_late_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile);

// Adds the weighted default vector of (row, expert) pair `pair` of the batch to its row of
// `batch.y`; `pair` counts the elements of `batch.expert_ids`.
void add_default_vector(const ExpertBatch& batch, const ExpertProfile& profile, std::size_t pair);

}  // namespace moex
