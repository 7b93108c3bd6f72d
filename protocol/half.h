// IEEE binary16 ("f16") and bfloat16 ("bf16") as bit patterns, converted to and from f32, round to nearest even.
// Plain and portable; the hub's hot loops have vector twins of these in hub/engine.
#pragma once

#include <bit>
#include <cstdint>

namespace moex {

using half = std::uint16_t;      // the bits of an f16
using bfloat16 = std::uint16_t;  // the bits of a bf16

namespace detail {
inline float float_of_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline std::uint32_t bits_of_float(float value) { return __builtin_bit_cast(std::uint32_t, value); }
}  // namespace detail

inline float half_to_float(half h) {
    const std::uint32_t sign = (h & 0x8000u) << 16;
    const std::uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return detail::float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return detail::float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
    const float value = static_cast<float>(magnitude) * 0x1p-24f;  // zero and subnormals are multiples of 2^-24
    return detail::float_of_bits(sign | detail::bits_of_float(value));
}

// Values beyond 65504 (after rounding) become infinity; NaN stays NaN.
inline half float_to_half(float value) {
    const std::uint32_t bits = detail::bits_of_float(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<half>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<half>(sign | 0x7c00u);  // 65520 and above round to infinity
    if (magnitude >= 0x38800000u) {                                          // 2^-14: normal
        const std::uint32_t rebased = magnitude - (112u << 23);
        return static_cast<half>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
    }
    // Adding 0.5 leaves the value's multiple of 2^-24, rounded to nearest even, in the low bits of the mantissa.
    const float shifted = detail::float_of_bits(magnitude) + 0.5f;
    return static_cast<half>(sign | (detail::bits_of_float(shifted) - 0x3f000000u));
}

inline float bfloat16_to_float(bfloat16 b) { return detail::float_of_bits(std::uint32_t{b} << 16); }

inline bfloat16 float_to_bfloat16(float value) {
    const std::uint32_t bits = detail::bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bfloat16>((bits >> 16) | 0x40u);
    return static_cast<bfloat16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace moex
