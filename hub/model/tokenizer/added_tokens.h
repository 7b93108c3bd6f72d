// AddedTokenMatcher finds added tokens in a text from left to right, and the longest match at each
// position, as the tokenizers library does. It is immutable after the last add().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hub/model/tokenizer/token_id.h"

namespace moex {

struct AddedToken {
    TokenId id = 0;
    std::string content;
    bool special = false;
    // true: the token is matched after normalisation, so other forms of its characters are found as
    // well
    bool normalized = false;
    bool lstrip = false;       // the match includes white space before the token
    bool rstrip = false;       // the match includes white space after the token
    bool single_word = false;  // true: no word character may be next to the token
    // Returns true if the token controls the model or is hidden from readers. The content of a
    // message must not produce such a token.
    bool is_control() const;
};

class AddedTokenMatcher {
  public:
    void add(std::string_view content, std::size_t token_index);
    // Finds the longest token that starts at byte `at` of a text. Returns the token's index, or -1,
    // and stores its length in `num_bytes`.
    int longest_at(std::string_view text, std::size_t at, std::size_t& num_bytes) const;
    bool empty() const { return token_by_node_.size() == 1; }

  private:
    // child nodes of a trie; key: node << 8 | byte
    std::unordered_map<std::uint64_t, std::uint32_t> edges_;
    std::vector<int> token_by_node_{-1};  // -1: no token ends here; node 0 is the root
    bool starts_[256] = {};
};

}  // namespace moex
