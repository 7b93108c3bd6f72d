// A backend that requests fewer experts per row from another backend: those with the largest
// weights, scaled to the sum of all weights. It is a shadow that saves experts instead of bits.
#pragma once

#include <memory>

#include "hub/engine/expert_backend.h"

namespace moex::bench {

// Requests at most `top_k` experts per row. `experts` outlives the result.
std::unique_ptr<ExpertBackend> make_fewer_experts(ExpertBackend& experts, std::uint32_t top_k);

}  // namespace moex::bench
