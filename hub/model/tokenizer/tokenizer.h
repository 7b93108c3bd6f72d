// Byte-level BPE as Hugging Face tokenizer.json describes it:
// added tokens, NFC, pre-tokenizer pattern (PCRE2), merges.
// Immutable after load; encode and decode are const and thread-safe.
// Source: GPT-2 byte-level BPE; tokenizers' "BPE" model, "ByteLevel" and "Split" pre-tokenizers,
// "TemplateProcessing".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/tokenizer/token_id.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/result.h"

namespace moex {

// Whether "<|im_end|>" in the text is the token or plain characters.
// Control tokens are the special ones and added markers such as <think>; other added tokens (words,
// runs of blanks) are always found.
enum class SpecialTokens { parse, as_text };

class Tokenizer {
  public:
    // `tokenizer_json`, `tokenizer_config_json` are file texts; the latter may be empty.
    // An unsupported model, normalizer, pre-tokenizer, post-processor or decoder is named in the
    // error.
    static Result<std::shared_ptr<const Tokenizer>> load(std::string_view tokenizer_json,
                                                         std::string_view tokenizer_config_json);
    ~Tokenizer();

    // Invalid UTF-8 becomes U+FFFD first (one per maximal ill-formed subsequence, as WHATWG
    // decoders do).
    std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;
    // A plain prompt as `parse`, with what the post-processor puts around it, e.g.
    // <|begin_of_text|>; chat templates write their own.
    std::vector<TokenId> encode_prompt(std::string_view text) const;
    // As `parse`, but a control token counts only where it lies wholly outside `plain`: ascending,
    // disjoint byte ranges of `text`. For chats: what the template wrote may be tokens, what a
    // message brought is characters. Text that is not UTF-8 is all plain.
    std::vector<TokenId> encode(std::string_view text, std::span<const TextRange> plain) const;
    // `skip_special`: leave out special added tokens. The result is valid UTF-8; broken sequences
    // become U+FFFD.
    std::string decode(std::span<const TokenId> ids, bool skip_special) const;
    // The raw bytes of one token (may be part of a UTF-8 sequence);
    // a special token's bytes are its text. Unknown id: empty.
    std::string token_bytes(TokenId id) const;
    bool is_special(TokenId id) const;
    bool is_added(TokenId id) const;  // special or not: no merge of the vocabulary makes it
    std::size_t vocab_size() const;   // highest id + 1
    std::optional<TokenId> token_id(
        std::string_view token) const;  // of an added token's content, or a vocabulary entry

  private:
    Tokenizer();
    struct State;
    std::unique_ptr<State> state_;
};

// Turns a stream of token ids into text: holds back bytes until their UTF-8 sequence is complete.
// One per sequence.
class StreamDecoder {
  public:
    explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
    std::string push(TokenId id);  // what can be shown now; may be empty
    std::string finish();          // what was held back, broken sequences as U+FFFD

  private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    std::string held_;
};

}  // namespace moex
