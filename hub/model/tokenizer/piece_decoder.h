// PieceDecoder: how the tokens of a SentencePiece vocabulary become text again: "▁" becomes a
// space, "<0x0A>" becomes one byte, and the space that the normalizer added before the text is
// removed. A PieceDecoder is immutable. Byte-level vocabularies need none, because their tokens are
// bytes already.
// Source: tokenizers' decoders "Replace", "Metaspace", "ByteFallback", "Fuse" and "Strip".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/split_pattern.h"
#include "protocol/result.h"

namespace moex {

// Removes up to `count` copies of `content` at the begin of a text, which arrives in parts.
struct LeadingTrim {
    std::string content;
    std::uint32_t count = 0;
    void apply(std::string& part);
};

class PieceDecoder {
  public:
    // Loads the member "decoder" of tokenizer.json.
    static Result<PieceDecoder> load(const nlohmann::json& decoder);
    // Returns the bytes that a token, spelled as in tokenizer.json, adds to the middle of a text.
    std::string bytes_of(std::string_view token) const;
    const LeadingTrim& trim() const { return trim_; }

  private:
    Status add(const nlohmann::json& object, int depth);
    Status add_replace(const nlohmann::json& object);
    Status add_metaspace(const nlohmann::json& object);
    Status add_strip(const nlohmann::json& object);

    std::vector<std::pair<SplitPattern, std::string>> replaced_;  // pattern and new text
    bool byte_fallback_ = false, fuses_ = false;
    LeadingTrim trim_;
};

}  // namespace moex
