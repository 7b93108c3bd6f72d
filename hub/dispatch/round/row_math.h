// Sums over rows of floats, at the speed of memory.
#pragma once

#include <cstddef>

namespace moex {

// The sum is accumulated in double.
double square_sum(const float* values, std::size_t count);
void add_row(float* sum, const float* row, std::size_t count);

}  // namespace moex
