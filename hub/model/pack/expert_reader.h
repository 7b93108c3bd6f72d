// Reads the weights of an expert as f32, as `pack` sees them before it rounds them.
#pragma once

#include "hub/model/pack/pack_input.h"
#include "protocol/expert_reference.h"

namespace moex {

// Returns gate and up [I, H] and down [H, I] in the package's shape. Rows and columns that pad the
// expert's width are zero. Thread-safe.
Result<ExpertWeights> read_expert_weights(const PackInput& input, const ExpertSource& source);

}  // namespace moex
