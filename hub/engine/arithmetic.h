// The arithmetic in which the hub multiplies its weight matrices.
#pragma once

#include <cstdint>

namespace moex {

enum class Arithmetic : std::uint8_t {
    exact,  // weights in the package's dtype, activations and sums in f32
    // weights of 8 bits (expert weights keep 4 bits), activations of 8 bits, exact integer sums
    int8,
};

}  // namespace moex
