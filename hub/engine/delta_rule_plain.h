// Slow reference version of delta_rule.h: one token after the other, in double. The tests compare
// the fast version with it.
#pragma once

#include <span>

#include "hub/engine/delta_rule.h"

namespace moex::plain {

// Computes all rows of a step and updates `s`, [value_heads, key_dim, value_dim], which is S before
// the step's first position.
void delta_rule(std::span<double> s, const DeltaRows& rows, const DeltaShape& shape);

}  // namespace moex::plain
