// TokenId: the number by which a vocabulary identifies a token.
#pragma once

#include <cstdint>

namespace moex {

using TokenId = std::uint32_t;
// Limit for token ids, larger than any real vocabulary. It keeps tables small when a file has a
// wrong id.
constexpr TokenId token_id_max = (1u << 24) - 1;

}  // namespace moex
