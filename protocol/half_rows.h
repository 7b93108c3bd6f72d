// f16 conversions of whole rows, by the processor's own instructions
// where it has them (x86 F16C); protocol/half.h is the twin.
// The same bits as the twin for every value but NaN, whose payload may differ.
#pragma once

#include <cstddef>

namespace moex {

// `halves`: count x 2 bytes, little-endian, at any alignment.
void halves_of_floats(const float* values, std::size_t count, std::byte* halves);
// whether all are finite
bool floats_of_halves(const std::byte* halves, std::size_t count, float* values);
void round_to_half(float* values, std::size_t count);

}  // namespace moex
