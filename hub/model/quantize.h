// INT4 by groups along a row: w ≈ scale · (code − zero), code 0..15, scale and zero stored as f16 (zero may be fractional).
// The search starts at the group's range, tries narrower ones, and refits scale and zero to the codes by least squares;
// every candidate is judged by the squared error with the f16 values that will be stored. Same bytes on every machine.
#pragma once

#include <cstdint>
#include <span>

namespace moex {

inline constexpr float int4_scale_min = 0x1p-14f;  // GPUs may flush smaller f16 values to zero

enum class Int4Search { range, best };  // `range`: plain minimum to maximum, the slow search's twin

// `row` [row_size] finite, row_size a multiple of `group_size` (32, 64 or 128). Writes row_size / 8 words of codes and
// row_size / group_size words of scale_zero. False when a weight is too large for an f16 scale (about 982,000).
bool quantize_int4_row(std::span<const float> row, std::uint32_t group_size, std::uint32_t* codes, std::uint32_t* scale_zero,
                       Int4Search search = Int4Search::best);

}  // namespace moex
