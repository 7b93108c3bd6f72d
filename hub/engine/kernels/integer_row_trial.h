// From how many rows on one product of integers is faster than another that gives the same bits:
// tried on this machine, since a processor's tiles, its caches and its clock decide it.
#pragma once

#include <cstdint>
#include <span>

#include "hub/engine/kernels/integer.h"

namespace moex {

// What so many rows took by each of the two, in any unit.
struct RowTrial {
    std::uint32_t rows = 0;
    double few = 0, many = 0;
};

inline constexpr std::uint32_t rows_never = ~std::uint32_t{0};
// The fewest rows tried from which on `many` was never slower; where it was with the most, never.
// `trials` by ascending rows.
std::uint32_t rows_where_faster(std::span<const RowTrial> trials);

// The same of two products, tried from `rows_min` to 32 rows on weights that a core's own cache
// holds. Some milliseconds.
std::uint32_t rows_where_faster(IntegerProduct few, IntegerProduct many, std::uint32_t rows_min,
                                PackedDtype dtype, std::uint32_t group_size);

}  // namespace moex
