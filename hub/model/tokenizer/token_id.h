// A token of a vocabulary, by its number.
#pragma once

#include <cstdint>

namespace moex {

using TokenId = std::uint32_t;
// Beyond any vocabulary; keeps tables small when a file lies.
constexpr TokenId token_id_max = (1u << 24) - 1;

}  // namespace moex
