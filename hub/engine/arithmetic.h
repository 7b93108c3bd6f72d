// The arithmetic in which the hub multiplies its matrices.
#pragma once

#include <cstdint>

namespace moex {

enum class Arithmetic : std::uint8_t {
    exact,  // weights as the package has them, activations and sums in f32
    int8,   // weights of 8 bits (experts: their own 4), activations of 8 bits, exact integer sums
};

}  // namespace moex
