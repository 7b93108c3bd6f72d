// Turns logits into the next token: penalties, bias, mask, temperature, top-k, min-p, top-p, then a
// draw with noise that depends on seed, choice, position and token alone.
// A temperature of 0 is greedy; ties go to the lower id. The same seed and logits give the same
// token on every machine (hub/engine/draw.h).
// Several samplers may choose concurrently, but each sampler is used by one thread at a time. A
// browser tab that runs a whole model by itself uses this file, too. So the file depends on draw.h,
// draw_noise.h and the type of token ids, and on nothing else of the engine. The log-probability of
// a token is computed in hub/engine/scores.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// Decides which tokens are allowed next in the answer of one sequence. Used by one thread at a
// time.
class TokenMask {
  public:
    virtual ~TokenMask() = default;
    // Returns one bit per token: bit id % 64 of word id / 64, [(vocab_size + 63) / 64]. A bit is
    // set if the token may follow `answer`; at least one bit is set. `tokens_left` is the number of
    // tokens that may still follow, the next one included. Ids beyond the last word are not
    // allowed. The span is valid until the next call.
    virtual std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                                   std::uint32_t tokens_left) = 0;
    // Returns tokens, at most `tokens_max`, that spell the text which must follow `answer`; empty
    // if the mask leaves a choice of texts. The same text may be cut into other tokens, so that
    // this is a guess (hub/draft/forced_draft.h).
    virtual std::vector<TokenId> forced(std::span<const TokenId> answer, std::size_t tokens_max) {
        static_cast<void>(answer), static_cast<void>(tokens_max);
        return {};
    }
};

struct SamplingOptions {
    double temperature = 1.0;
    double top_p = 1.0;
    std::uint32_t sample_top_k = 0;  // 0: off
    double min_p = 0.0;
    // Repetition penalty as in the paper "CTRL": it divides positive and multiplies negative logits
    // of tokens seen in the prompt or the output
    double repetition_penalty = 1.0;
    // as in OpenAI's API: subtracted once from the logit of each token that is in the output
    double presence_penalty = 0.0;
    // as in OpenAI's API: subtracted for each occurrence of the token in the output
    double frequency_penalty = 0.0;
    std::map<TokenId, float> logit_bias;
    std::uint64_t seed = 0;
    std::uint32_t choice = 0;         // index of this answer among the answers to one request
    std::shared_ptr<TokenMask> mask;  // allows the next tokens; null: every token is allowed
};

struct TokenLogit {
    TokenId id = 0;
    float logit = 0;
};
// A device's result for one row instead of all logits: the likeliest tokens by descending logit and
// ascending id, and the logarithm of the sum of exp() over all logits (NaN if a logit is NaN).
struct LikeliestTokens {
    std::vector<TokenLogit> tokens;
    float log_sum_exp = 0;
};

class Sampler {
  public:
    // `tokens_max` is the length limit of the answer, from which the mask gets its `tokens_left`.
    Sampler(SamplingOptions options, std::span<const TokenId> prompt,
            std::uint32_t tokens_max = 0xffff'ffff);
    // Chooses and returns the next token by `logits` [vocab_size], which are not changed.
    TokenId choose(std::span<const float> logits);
    // Returns how many of a row's likeliest tokens choose() needs to return the same token as with
    // all logits. 0: choose() needs all logits.
    std::uint32_t num_likeliest() const;
    // Returns the token that choose() would return with all logits. Requires num_likeliest() tokens
    // or more in `likeliest`.
    TokenLogit choose(std::span<const TokenLogit> likeliest);
    void accept(TokenId id);  // records that token `id` was added to the output

  private:
    bool adjusts() const;
    // Returns the logits after penalties, bias and, last, the mask. The result is stored in
    // scratch_ if any of these changes a logit; otherwise it is `logits`.
    std::span<const float> adjust(std::span<const float> logits);
    // sets the logits of tokens that the mask does not allow to -infinity
    void forbid(std::span<float> logits);
    TokenId draw(std::span<const float> logits, std::span<const TokenId> ids);

    SamplingOptions options_;
    std::map<TokenId, std::uint32_t> output_counts_;
    std::vector<TokenId> prompt_tokens_;  // sorted, unique
    std::uint32_t position_;              // position of the next token in the sequence
    std::uint32_t tokens_max_;
    std::vector<TokenId> answer_;  // tokens of the answer so far, for the mask
    std::vector<float> scratch_;
};

}  // namespace moex
