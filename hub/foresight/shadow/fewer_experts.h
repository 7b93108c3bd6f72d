// A backend that asks another for fewer experts a row: the heaviest, which then weigh as much as
// all did. What a shadow can do without fewer bits.
#pragma once

#include <memory>

#include "hub/engine/expert_backend.h"

namespace moex {

// `top_k` of them, or all where a row has no more. `experts` outlives it.
std::unique_ptr<ExpertBackend> make_fewer_experts(ExpertBackend& experts, std::uint32_t top_k);

}  // namespace moex
