// Sums over rows of floats, as fast as memory delivers the rows.
#pragma once

#include <cstddef>

namespace moex {

// Returns the sum of the squares of the values, accumulated in double.
double square_sum(const float* values, std::size_t count);
void add_row(float* sum, const float* row, std::size_t count);
// Adds factor · row to the sum. Each product is rounded to f32 before it is added.
void add_scaled_row(float* sum, const float* row, float factor, std::size_t count);

}  // namespace moex
