// Turns sampled tokens into the text that a client may see: the text has only whole UTF-8
// sequences, is held back while a stop string may be forming, and is cut at a complete stop string.
// Streams and whole answers use the same code, so that both have the same text.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hub/engine/scores.h"
#include "hub/model/tokenizer/stop_filter.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// A token of the answer with its log-probability. The texts of all entries, joined, are the
// answer's text. A token that ends inside a UTF-8 sequence has an empty text, and the token that
// completes the sequence has its text. The tokenizer knows the raw bytes of the token `id`.
struct TokenText {
    TokenId id = 0;
    std::string text;
    float logprob = 0;
    std::vector<TokenLogprob> top;
    // Offset of `text` in the answer; characters are code points.
    std::uint64_t offset_bytes = 0, offset_characters = 0;
};

class AnswerText {
  public:
    // `tokenizer` may be null: then the answer's text consists of the token ids in decimal,
    // separated by blanks. `keep_tokens`: return tokens with their log-probabilities.
    // `keep_special`: write special tokens as their texts, as in a prompt. `begin`: whether the
    // answer continues the prompt's text, so that the space before its first word counts.
    // `min_tokens`: stop strings are looked for behind the first `min_tokens` tokens.
    AnswerText(const Tokenizer* tokenizer, std::vector<std::string> stops, bool keep_tokens,
               bool keep_special = false, TextBegin begin = TextBegin::here,
               std::uint32_t min_tokens = 0);

    struct Shown {
        std::string text;
        std::vector<TokenText> tokens;  // tokens whose whole text has been shown
    };
    Shown push(const SampledToken& token);
    Shown finish();
    bool stopped() const { return filter_.stopped(); }
    const std::string& stop() const { return filter_.stop(); }
    std::uint32_t num_tokens() const { return num_tokens_; }

  private:
    Shown release(std::string text);
    const Tokenizer* tokenizer_;
    std::unique_ptr<StreamDecoder> decoder_;
    StopFilter filter_;
    bool keep_tokens_;
    std::deque<TokenText> waiting_;
    std::uint64_t decoded_bytes_ = 0, decoded_characters_ = 0, shown_bytes_ = 0;
    std::uint32_t num_tokens_ = 0, min_tokens_;
};

}  // namespace moex
