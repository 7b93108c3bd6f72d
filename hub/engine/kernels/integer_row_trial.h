// Measures the number of rows from which one integer product is faster than another product that
// gives the same bits. It is measured on this machine, since it depends on the processor's tiles,
// caches and clock.
#pragma once

#include <cstdint>
#include <span>

#include "hub/engine/kernels/integer.h"

namespace moex {

// The times that the two products took for `rows` rows, in any unit.
struct RowTrial {
    std::uint32_t rows = 0;
    double few = 0, many = 0;
};

inline constexpr std::uint32_t rows_never = ~std::uint32_t{0};
// Returns the smallest number of rows in `trials` from which on the product `many` was never slower
// than `few`; rows_never if `many` was slower in the trial with the most rows. `trials` are sorted
// by ascending rows.
std::uint32_t rows_where_faster(std::span<const RowTrial> trials);

// Measures the two products with `rows_min` to 32 rows, on weights that fit into a core's own
// cache, and returns the number of rows from which on `many` is not slower. Takes some
// milliseconds.
std::uint32_t rows_where_faster(IntegerProduct few, IntegerProduct many, std::uint32_t rows_min,
                                PackedDtype dtype, std::uint32_t group_size);

}  // namespace moex
