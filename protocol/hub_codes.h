// Matrices of the hub in 8 or 4 bits: codes in groups along a row of inputs, as `pack --hub-dtype`
// writes them and as int8 arithmetic rounds the matrices of other packages at load. Every machine
// makes the same codes of a weight.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/half.h"
#include "protocol/result.h"

namespace moex {

// How a package holds the hub's matrices; bf16 stands for "as they are", which may be f32, too.
enum class HubDtype : std::uint8_t { bf16, int8, int4 };
const char* hub_dtype_name(HubDtype dtype);
Result<HubDtype> parse_hub_dtype(std::string_view name);

// Inputs of a row that share a scale. int8: the largest of 128, 64 and 32 that divides num_in, 32
// where none does.
std::uint32_t int8_group_size(std::uint32_t num_in);
inline constexpr std::uint32_t hub_int6_group_size = 64;
inline constexpr std::uint32_t hub_int4_group_size = 32;  // keeps most

// A group of at most 128 weights: scale = max|w| / 127, which comes back; code = round(w · (127 /
// max|w|)), ties to even. w ≈ scale · code.
float quantize_int8_group(std::span<const float> weights, std::int8_t* codes);
// The same for 6 bits: scale = −w / 32 for the w of the largest size, as f16 has it; code =
// round(w / scale), from −32 to 31. w ≈ scale · code. The scale comes back.
half quantize_int6_group(std::span<const float> weights, std::int8_t* codes);
// A group of hub_int4_group_size weights: scale = (max − min) / 15, zero = −min / scale, code =
// round(w / scale + zero), with scale and zero as f16 has them; they come back as an expert's
// (pack_scale_zero), and codes lie in words as an expert's. w ≈ scale · (code − zero).
std::uint32_t quantize_int4_group(std::span<const float> weights, std::uint32_t* codes);

// A row of int8 back; that of int4 is dequantize_int4_row()'s.
void dequantize_int8_row(const std::int8_t* codes, const float* scales, std::uint32_t row_size,
                         std::uint32_t group_size, float* out);

}  // namespace moex
