// The quantisation of a shadow's experts. A row is divided into groups. A group has codes of a few
// bits and a scale. A code represents this weight w:
//   int2, int3   scale · (code − zero), code from 0, scale and zero f16
//   nf4          scale · level[code], 16 levels of equal probability in a normal distribution; a
//                group has at most 64 weights, scale f16
//   int8         scale · code, code −127 … 127, scale f16
// A row is stored as its codes, then the f16 values of each group. Code i has bits [i · bits, (i +
// 1) · bits) of the little-endian bytes.
// Example: an int3 row of 64 weights in groups of 32 has 24 bytes of codes, then scale and zero of
// group 0, then scale and zero of group 1.
// Source of nf4: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023, appendix
// E.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

enum class ShadowDtype : std::uint8_t { int2, int3, nf4, int8 };
const char* shadow_dtype_name(ShadowDtype dtype);  // "int2", ...
Result<ShadowDtype> parse_shadow_dtype(std::string_view name);

// The shape of one row of a shadow's matrix: dtype, number of weights and group size.
struct ShadowRow {
    ShadowDtype dtype = ShadowDtype::int3;
    std::uint32_t row_size = 0;    // number of weights, a multiple of group_size
    std::uint32_t group_size = 0;  // weights that share one scale: 32, 64 or 128

    std::uint32_t code_bits() const;
    bool has_zeros() const { return dtype == ShadowDtype::int2 || dtype == ShadowDtype::int3; }
    std::uint32_t num_groups() const { return row_size / group_size; }
    std::uint64_t code_bytes() const { return std::uint64_t{row_size} * code_bits() / 8; }
    std::uint64_t size_bytes() const { return code_bytes() + num_groups() * (has_zeros() ? 4 : 2); }
};
inline constexpr std::uint32_t shadow_group_size_max(ShadowDtype dtype) {
    return dtype == ShadowDtype::nf4 ? 64 : 128;
}

// smallest scale; GPUs may flush smaller f16 values to zero
inline constexpr float shadow_scale_min = 0x1p-14f;
extern const float nf4_levels[16];

// Quantises a row; `row` has size_bytes(). Returns false if a weight is not finite or too large for
// an f16 scale.
// - int2 and int3: the range of a group is the range of its weights, zero included. It is divided
//   into equal cells, and the weight of a code is the middle of its cell. With few codes the
//   largest error is smaller than with the first and last code at the ends of the range.
//   If the weights themselves have only `source_codes` levels (INT4: 16), the range is extended by
//   half of their step on both sides. Every cell then contains the same number of levels.
// - nf4 and int8: the range is the largest magnitude.
bool quantize_shadow_row(const ShadowRow& shape, std::span<const float> weights,
                         std::uint32_t source_codes, std::span<std::byte> row);

// These functions read the codes and the scales of a row separately. The codes are [row_size]; int8
// codes are in two's complement.
void unpack_shadow_codes(const ShadowRow& shape, ByteView row, std::span<std::uint8_t> codes);
struct ShadowScale {
    float scale = 0, zero = 0;
};
ShadowScale shadow_scale(const ShadowRow& shape, ByteView row, std::uint32_t group);
// Converts the codes of a row to f32 weights.
void dequantize_shadow_row(const ShadowRow& shape, ByteView row, std::span<float> weights);

}  // namespace moex
