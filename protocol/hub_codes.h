// Quantisation of the hub's matrices to 8 or 4 bits, in groups of codes along a row of inputs.
// `pack --hub-dtype` writes these codes, and a hub with int8 arithmetic rounds the matrices of
// other packages to the same codes when it loads them. Every machine computes the same codes from a
// weight.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/half.h"
#include "protocol/result.h"

namespace moex {

// The data type in which a package stores the hub's matrices. bf16 means "unquantised", and then a
// matrix may also be f32.
enum class HubDtype : std::uint8_t { bf16, int8, int4 };
const char* hub_dtype_name(HubDtype dtype);
Result<HubDtype> parse_hub_dtype(std::string_view name);

// Returns the number of inputs of a row that share a scale. For int8 this is the largest of 128, 64
// and 32 that divides num_in, or 32 if none of them does.
std::uint32_t int8_group_size(std::uint32_t num_in);
inline constexpr std::uint32_t hub_int6_group_size = 64;
inline constexpr std::uint32_t hub_int4_group_size = 32;  // the most accurate group size

// Quantises a group of at most 128 weights: scale = max|w| / 127; code = round(w · (127 /
// max|w|)), ties to even. w ≈ scale · code. Returns the scale.
float quantize_int8_group(std::span<const float> weights, std::int8_t* codes);
// Quantises a group to 6 bits: scale = −w / 32 for the w with the largest magnitude, rounded to
// f16; code = round(w / scale), from −32 to 31. w ≈ scale · code. Returns the scale.
half quantize_int6_group(std::span<const float> weights, std::int8_t* codes);
// Quantises a group of hub_int4_group_size weights: scale = (max − min) / 15, zero = −min / scale,
// code = round(w / scale + zero), with scale and zero rounded to f16. w ≈ scale · (code − zero).
// Returns scale and zero in the form of an expert (pack_scale_zero). The codes are packed into
// words as in an expert.
std::uint32_t quantize_int4_group(std::span<const float> weights, std::uint32_t* codes);

// Converts a row of int8 codes to weights. For int4 codes use dequantize_int4_row().
void dequantize_int8_row(const std::int8_t* codes, const float* scales, std::uint32_t row_size,
                         std::uint32_t group_size, float* out);

}  // namespace moex
