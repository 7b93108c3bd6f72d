// IEEE binary16 ("f16") and bfloat16 ("bf16") as bit patterns, with conversions to and from f32
// that round to nearest even.
// The code is plain and portable. The hub's hot loops use vector versions in hub/engine.
#pragma once

#include <bit>
#include <cstdint>

namespace moex {

using half = std::uint16_t;      // bit pattern of an f16 number
using bfloat16 = std::uint16_t;  // bit pattern of a bf16 number

namespace detail {
inline float float_of_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline std::uint32_t bits_of_float(float value) { return __builtin_bit_cast(std::uint32_t, value); }
}  // namespace detail

// Converts an f16 to f32. The function selects values instead of branching, so that the compiler
// turns loops over rows into vector code.
inline float half_to_float(half h) {
    const std::uint32_t sign = (h & 0x8000u) << 16;
    const std::int32_t magnitude = h & 0x7fff;
    const std::uint32_t normal = (static_cast<std::uint32_t>(magnitude) << 13) + (112u << 23);
    // infinity and NaN have the f32 exponent 255
    const std::uint32_t special = normal + (112u << 23);
    // An f16 zero or subnormal is a multiple of 2^-24.
    const std::uint32_t tiny = detail::bits_of_float(static_cast<float>(magnitude) * 0x1p-24f);
    return detail::float_of_bits(sign | (magnitude >= 0x7c00   ? special
                                         : magnitude >= 0x0400 ? normal
                                                               : tiny));
}

// Converts an f32 to f16. Values beyond 65504 (after rounding) become infinity; NaN stays NaN.
inline half float_to_half(float value) {
    const std::uint32_t bits = detail::bits_of_float(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::int32_t magnitude = static_cast<std::int32_t>(bits & 0x7fffffffu);
    const std::uint32_t rebased = static_cast<std::uint32_t>(magnitude) - (112u << 23);
    const std::uint32_t normal = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
    // Adding 0.5 to a small value rounds the value to a multiple of 2^-24, to nearest even, and
    // leaves that multiple in the low bits of the mantissa.
    const float shifted = detail::float_of_bits(static_cast<std::uint32_t>(magnitude)) + 0.5f;
    const std::uint32_t tiny = detail::bits_of_float(shifted) - 0x3f000000u;
    // values from 2^-14 up are normal f16 numbers
    const std::uint32_t small = magnitude >= 0x38800000 ? normal : tiny;
    // values of 65520 and above round to infinity
    const std::uint32_t finite = magnitude >= 0x477ff000 ? 0x7c00u : small;
    return static_cast<half>(sign | (magnitude > 0x7f800000 ? 0x7e00u : finite));
}

inline float bfloat16_to_float(bfloat16 b) { return detail::float_of_bits(std::uint32_t{b} << 16); }

inline bfloat16 float_to_bfloat16(float value) {
    const std::uint32_t bits = detail::bits_of_float(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = static_cast<std::int32_t>(bits & 0x7fffffffu) > 0x7f800000;
    return static_cast<bfloat16>(nan ? (bits >> 16) | 0x40u : rounded);
}

}  // namespace moex
