// Finds where the last tokens of a text occurred before in it. The tokens that followed them there
// may follow again (hub/draft/ngram_draft.h). A browser tab that runs a whole model by itself uses
// this file, too, so that it depends on the type of token ids and on nothing else of the hub.
//   tokens a b c d e a b c:  the longest earlier occurrence of the end is a b c; proposal d e a b
// Source: Saxena, "Prompt Lookup Decoding", 2023.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// The positions of every pair of neighbouring tokens, in lists from the latest position back. Costs
// O(1) a token, and about 12 bytes a token.
class Repetitions {
  public:
    // A proposal needs a repetition of at least this many tokens.
    static constexpr std::uint32_t length_min = 2;

    // Reads the tokens that were added since the last call; `tokens` are all tokens of the text.
    void read(std::span<const TokenId> tokens);

    // Appends up to `tokens_max` proposed tokens to `proposed`, for the text that read() has read.
    // Returns the length of the repetition that they follow, at most 32; 0 if there is none.
    std::uint32_t propose(std::span<const TokenId> tokens, std::uint32_t tokens_max,
                          std::vector<TokenId>& proposed) const;

    // Returns the class of a repetition of `length` tokens, by which acceptance is learned: 0 to 7
    // for 2, 3, 4, 6, 9, 14, 21 and 32 tokens or more.
    static std::uint32_t class_of(std::uint32_t length);

  private:
    struct Found {
        std::uint32_t end = 0, length = 0;
    };
    Found find(std::span<const TokenId> tokens) const;

    std::unordered_map<std::uint64_t, std::uint32_t> latest_;  // last position of each pair
    std::vector<std::uint32_t> before_;  // for each position: the one before with the same pair
};

}  // namespace moex
