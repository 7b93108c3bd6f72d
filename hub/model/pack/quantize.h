// INT4 quantisation by groups along a row: w ≈ scale · (code − zero), code 0..15. The codes span
// the range from the minimum to the maximum of the group (zero included). Scale and zero are stored
// as f16. The zero may be fractional. Codes are rounded with the stored values.
//
// A search for the least squared error was tried (narrower ranges, lines refitted to the codes).
// The search reduced the squared error of the demo's experts by 13 %, but raised the perplexity
// from 25.105 to 25.156 (refit only) and 25.27 (both), because clipped outliers matter.
#pragma once

#include <cstdint>
#include <span>

namespace moex {

// smallest scale; GPUs may flush smaller f16 values to zero
inline constexpr float int4_scale_min = 0x1p-14f;

// Quantises the weights `row` [row_size], all of which must be finite. row_size is a multiple of
// `group_size` (32, 64 or 128). Writes row_size / 8 words of codes and row_size / group_size words
// of scale_zero. Returns false if a weight is too large for an f16 scale (about 982,000). The
// result is the same on every machine.
bool quantize_int4_row(std::span<const float> row, std::uint32_t group_size, std::uint32_t* codes,
                       std::uint32_t* scale_zero);

}  // namespace moex
