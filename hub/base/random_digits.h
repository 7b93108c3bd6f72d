// Random names of streams, texts and requests, which no client can guess.
#pragma once

#include <cstddef>
#include <random>
#include <string>

namespace moex {

// Returns `count` random hexadecimal digits, by the system's source of random numbers.
inline std::string random_digits(std::size_t count) {
    std::random_device device;
    std::string digits;
    while (digits.size() < count) digits += "0123456789abcdef"[device() & 15];
    return digits;
}

}  // namespace moex
