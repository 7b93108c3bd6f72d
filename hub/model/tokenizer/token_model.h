// TokenModel: the part of a tokenizer that turns one pre-token into token ids. Implementations:
// BpeModel (merges) and UnigramModel (the most probable segmentation). After load a model is
// immutable, apart from locked caches, and encode_piece() is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/tokenizer/token_id.h"

namespace moex {

// limit of a vocabulary; the largest real ones have 262,144 tokens
inline constexpr std::size_t vocab_tokens_max = 1'000'000;

class TokenModel {
  public:
    virtual ~TokenModel() = default;

    // Appends the token ids of a pre-token, which is valid UTF-8, to `out`.
    virtual void encode_piece(std::string_view piece, std::vector<TokenId>& out) const = 0;
    // Returns the text of a token id, in which a byte alphabet is already undone; nullptr for an id
    // that is not in the vocabulary.
    virtual const std::string* bytes_of(TokenId id) const = 0;
    // Returns the id of a token that is spelled as in tokenizer.json.
    virtual std::optional<TokenId> find_token(std::string_view token) const = 0;
    virtual std::size_t id_end() const = 0;  // the highest id of the vocabulary plus 1
    // Makes encode_piece() never return these ids. A vocabulary may list control tokens such as
    // "</s>", which the characters of a message must not produce.
    virtual void exclude(const std::set<TokenId>& ids) = 0;
};

// Returns the byte of a token such as "<0x0A>", which stands for one byte; nullopt for any other
// token.
std::optional<std::uint8_t> byte_of_token(std::string_view token);

}  // namespace moex
