// The slow reference version of an expert in integer arithmetic: the portable products, with plain
// loops between them.
#pragma once

#include <span>

#include "hub/engine/kernels/expert_round.h"
#include "hub/engine/kernels/integer.h"

namespace moex::plain {

// Computes y [hidden_size] = expert(x [hidden_size]) without a gate weight. Both weight matrices
// are int4 or mxfp4.
void compute_expert(std::span<float> y, const PackedMatrix& gate_up, const PackedMatrix& down,
                    std::span<const float> x, const ExpertExtras& extras = {});

}  // namespace moex::plain
