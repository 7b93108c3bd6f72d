// The slow twin of an expert in integers: the portable products, with plain loops between them.
#pragma once

#include <span>

#include "hub/engine/kernels/integer.h"

namespace moex::plain {

// y [hidden_size] = expert(x [hidden_size]), without a gate. Both matrices are int4.
void compute_expert(std::span<float> y, const PackedMatrix& gate_up, const PackedMatrix& down,
                    std::span<const float> x);

}  // namespace moex::plain
