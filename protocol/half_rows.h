// f16 conversions of whole rows. They use the processor's own instructions where they exist (x86
// F16C); the plain version is protocol/half.h.
// Both versions give the same bits for every value except NaN, where the payload may differ.
#pragma once

#include <cstddef>

namespace moex {

// Converts f32 values to f16. `halves` has room for count x 2 bytes, little-endian, at any
// alignment.
void halves_of_floats(const float* values, std::size_t count, std::byte* halves);
// Converts f16 values to f32. Returns true if all values are finite.
bool floats_of_halves(const std::byte* halves, std::size_t count, float* values);
void round_to_half(float* values, std::size_t count);

}  // namespace moex
