// Small number formats: FP8 e4m3fn, the E2M1 codes of MXFP4 and their E8M0 scales.
// Source: OCP 8-bit Floating Point Specification and OCP Microscaling Formats Specification, 2023.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace moex {

// Returns the value of an FP8 code e4m3fn: bias 7, largest 448, 0x7f and 0xff are NaN.
inline float e4m3_to_float(std::uint8_t code) {
    if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                      : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    return code & 0x80 ? -value : value;
}

// Returns the value of an E2M1 code: 0, 0.5, 1, 1.5, 2, 3, 4 or 6 with a sign in bit 3.
inline float e2m1_to_float(std::uint32_t code) {
    constexpr float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

// Returns 2^(exponent − 127), the scale of an MXFP4 block; 255 is NaN.
inline float e8m0_to_float(std::uint8_t exponent) {
    if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
    return std::ldexp(1.0f, exponent - 127);
}

}  // namespace moex
