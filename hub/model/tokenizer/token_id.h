// TokenId: the number of a token in a vocabulary.
#pragma once

#include <cstdint>

namespace moex {

using TokenId = std::uint32_t;
// Larger than any real vocabulary. The limit keeps tables small when a file has a wrong id.
constexpr TokenId token_id_max = (1u << 24) - 1;

}  // namespace moex
