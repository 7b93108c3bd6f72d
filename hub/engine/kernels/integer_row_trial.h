// Measures the number of rows from which one integer product is faster than another with the same
// bits. It is measured on this machine, since it depends on the processor's tiles, caches and
// clock.
#pragma once

#include <cstdint>
#include <span>

#include "hub/engine/kernels/integer.h"

namespace moex {

// The time that `rows` rows took by each of the two products, in any unit.
struct RowTrial {
    std::uint32_t rows = 0;
    double few = 0, many = 0;
};

inline constexpr std::uint32_t rows_never = ~std::uint32_t{0};
// Returns the smallest number of rows in `trials` from which on `many` was never slower; rows_never
// if it was slower with the most rows. `trials` are sorted by ascending rows.
std::uint32_t rows_where_faster(std::span<const RowTrial> trials);

// The same for two products, measured from `rows_min` to 32 rows on weights that fit into a core's
// own cache. Takes some milliseconds.
std::uint32_t rows_where_faster(IntegerProduct few, IntegerProduct many, std::uint32_t rows_min,
                                PackedDtype dtype, std::uint32_t group_size);

}  // namespace moex
