// CharsMap: SentencePiece's precompiled map of characters, which normalises a text: at each
// position the longest key of the map is replaced by its value, e.g. "ﬁ" by "fi". A CharsMap is
// immutable and thread-safe.
//
// The bytes are: the size of the trie as u32; the trie, a double array of u32 units (darts-clone);
// the values, each of which ends with a zero byte. A leaf of the trie holds the position of its
// value. All numbers are little-endian. Source: SentencePiece's normalizer; Aoe, "An Efficient
// Digital Search Algorithm by Using a Double-Array Structure", 1989.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/result.h"

namespace moex {

class CharsMap {
  public:
    static Result<std::shared_ptr<const CharsMap>> from_base64(std::string_view base64);
    static Result<std::shared_ptr<const CharsMap>> from_bytes(std::string_view bytes);
    // Returns the normalised form of `text`, which is valid UTF-8. A position where no key begins
    // keeps its character.
    std::string apply(std::string_view text) const;

  private:
    // Returns the length of the longest key at the begin of `text`, or 0, and stores its value.
    std::size_t longest_key(std::string_view text, std::string_view& value) const;

    std::vector<std::uint32_t> units_;
    std::string values_;
};

}  // namespace moex
