// Tokenizer: byte-level BPE as Hugging Face tokenizer.json describes it, with added tokens, NFC,
// pre-tokenizer pattern (PCRE2) and merges.
// A tokenizer is immutable after load. encode and decode are const and thread-safe.
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

// Decides whether characters such as "<|im_end|>" in the text are a control token or plain text.
// Control tokens are the special tokens and added markers such as <think>. Other added tokens
// (words, runs of blanks) are always found.
enum class SpecialTokens { parse, as_text };

class Tokenizer {
  public:
    // Loads a tokenizer from the texts of two files. `tokenizer_config_json` may be empty.
    // The error names an unsupported model, normalizer, pre-tokenizer, post-processor or decoder.
    static Result<std::shared_ptr<const Tokenizer>> load(std::string_view tokenizer_json,
                                                         std::string_view tokenizer_config_json);
    ~Tokenizer();

    // Returns the token ids of `text`. Invalid UTF-8 in `text` is first replaced by U+FFFD (one per
    // maximal ill-formed subsequence, as WHATWG decoders do).
    std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;
    // Encodes a plain prompt with SpecialTokens::parse and adds the ids of the post-processor, e.g.
    // <|begin_of_text|>. Chats do not need these ids, because chat templates write the tokens
    // themselves.
    std::vector<TokenId> encode_prompt(std::string_view text) const;
    // Encodes like SpecialTokens::parse, but recognises a control token only if it is completely
    // outside `plain`, which has ascending, disjoint byte ranges of `text`. This function is for
    // chats: text of the template may become control tokens, while text of a message is only
    // characters. If `text` is not valid UTF-8, the whole text counts as plain.
    std::vector<TokenId> encode(std::string_view text, std::span<const TextRange> plain) const;
    // Returns the text of `ids`, without special added tokens if `skip_special` is true. The result
    // is valid UTF-8; broken sequences become U+FFFD.
    std::string decode(std::span<const TokenId> ids, bool skip_special) const;
    // Returns the raw bytes of a token, which may be part of a UTF-8 sequence. For a special
    // token these are the bytes of its text. For an unknown id the result is empty.
    std::string token_bytes(TokenId id) const;
    bool is_special(TokenId id) const;
    // true for added tokens, which may be special; merges do not produce them
    bool is_added(TokenId id) const;
    std::size_t vocab_size() const;  // the highest token id plus 1
    // Returns the id of `token`, which is the content of an added token or a vocabulary entry.
    std::optional<TokenId> token_id(std::string_view token) const;

  private:
    Tokenizer();
    struct State;
    std::unique_ptr<State> state_;
};

// StreamDecoder converts a stream of token ids to text. It holds bytes back until their UTF-8
// sequence is complete. Each generated sequence has its own decoder.
class StreamDecoder {
  public:
    explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
    std::string push(TokenId id);  // returns the text that can be shown now, which may be empty
    std::string finish();          // returns the remaining text, with broken sequences as U+FFFD

  private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    std::string held_;
};

}  // namespace moex
