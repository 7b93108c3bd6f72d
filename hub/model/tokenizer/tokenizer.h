// Tokenizer: what Hugging Face tokenizer.json describes. Two kinds of vocabularies are supported:
// byte-level BPE (GPT-2, Llama 3, Qwen, DeepSeek) and SentencePiece's (BPE with byte fallback, as
// of Llama 2, Mistral and Gemma, or Unigram). tokenizer_files.h makes a tokenizer.json of the files
// of SentencePiece and tiktoken.
//
// A text passes these steps: added tokens are cut out (added_tokens.h); the Normalizer changes the
// characters; added tokens that are matched behind it are cut out; the PreTokenizer splits the
// rest; a TokenModel (BpeModel or UnigramModel) finds the tokens of each piece. "hello you" of
// Llama 2 becomes "▁hello▁you", which is one piece with the tokens "▁hello" and "▁you".
//
// A tokenizer is immutable after load. encode and decode are const and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/tokenizer/piece_decoder.h"
#include "hub/model/tokenizer/token_id.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/result.h"

namespace moex {

struct TokenizerState;

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
    // Returns the token that encode_prompt() puts before a text, such as <s>; nullopt: none.
    std::optional<TokenId> begin_token() const;
    // Encodes like SpecialTokens::parse, but recognises a control token only if it is completely
    // outside `plain`, which has ascending, disjoint byte ranges of `text`. This function is for
    // chats: text of the template may become control tokens, while text of a message is only
    // characters. If `text` is not valid UTF-8, the whole text counts as plain.
    std::vector<TokenId> encode(std::string_view text, std::span<const TextRange> plain) const;
    // Returns the text of `ids`, without special added tokens if `skip_special` is true. The result
    // is valid UTF-8; broken sequences become U+FFFD. The space that a SentencePiece vocabulary has
    // before the first word of a text is removed.
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
    // What decoding removes at the begin of a text.
    const LeadingTrim& leading_trim() const;

  private:
    Tokenizer();
    std::unique_ptr<TokenizerState> state_;
};

// Where the text of a stream begins: with its first token, as decode() assumes, or earlier, so that
// the space before the first word is kept.
enum class TextBegin { here, earlier };

// StreamDecoder converts a stream of token ids to text. It holds bytes back until their UTF-8
// sequence is complete. Each generated sequence has its own decoder.
class StreamDecoder {
  public:
    explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true,
                           TextBegin begin = TextBegin::here);
    std::string push(TokenId id);  // returns the text that can be shown now, which may be empty
    std::string finish();          // returns the remaining text, with broken sequences as U+FFFD

  private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    LeadingTrim trim_;
    std::string held_;
};

}  // namespace moex
