// INT4 by groups along a row: w ≈ scale · (code − zero), code 0..15, from the group's minimum to
// its maximum (zero included); scale and zero are stored as f16, zero may be fractional, and codes
// are rounded with the stored values.
// A search for the least squared error (narrower ranges, lines refitted to the codes) took 13 % off
// the squared error of the demo's experts but raised its perplexity from 25.105 to 25.156 (refit
// only) and 25.27 (both): clipped outliers matter.
#pragma once

#include <cstdint>
#include <span>

namespace moex {

inline constexpr float int4_scale_min = 0x1p-14f;  // GPUs may flush smaller f16 values to zero

// `row` [row_size] finite, row_size a multiple of `group_size` (32, 64 or 128).
// Writes row_size / 8 words of codes and row_size / group_size words of scale_zero. False when a
// weight is too large for an f16 scale (about 982,000). Same bytes on every machine.
bool quantize_int4_row(std::span<const float> row, std::uint32_t group_size, std::uint32_t* codes,
                       std::uint32_t* scale_zero);

}  // namespace moex
