// Finds added tokens in text: longest match first, left to right, as tokenizers does. Immutable
// after the last add().
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
    // matched after normalisation, so plain words in it may be found in any form
    bool normalized = false;
    bool lstrip = false;  // swallows white space before it
    bool rstrip = false;  // and after it
    // Steers the model or is hidden from readers: what a message's content must not be able to
    // write.
    bool is_control() const;
};

class AddedTokenMatcher {
  public:
    void add(std::string_view content, std::size_t token_index);
    // The longest token that starts at `at`; its index, or -1, and its length.
    int longest_at(std::string_view text, std::size_t at, std::size_t& num_bytes) const;
    bool empty() const { return token_by_node_.size() == 1; }

  private:
    std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // key: node << 8 | byte
    std::vector<int> token_by_node_{-1};                      // node 0 is the root
    bool starts_[256] = {};
};

}  // namespace moex
