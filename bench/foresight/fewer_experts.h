// A backend that wraps another backend and requests fewer experts per row from it: the experts with
// the largest weights. These weights are scaled so that their sum is the sum of all the row's
// weights. It is a shadow that saves experts instead of bits.
#pragma once

#include <memory>

#include "hub/engine/expert_backend.h"

namespace moex::bench {

// Returns a backend that requests at most `top_k` experts per row. `experts` must outlive it.
std::unique_ptr<ExpertBackend> make_fewer_experts(ExpertBackend& experts, std::uint32_t top_k);

}  // namespace moex::bench
