// The sampler turns logits into the next token: penalties, bias, mask, temperature, top-k, min-p,
// top-p, then a draw whose noise depends on seed, choice, position and token alone.
// A temperature of 0 is greedy; ties go to the lower id. The same seed and logits give the same
// token on every machine (hub/engine/draw.h).
// Several samplers may choose concurrently, but each sampler is used by one thread at a time. A tab
// that answers by itself uses this file, too: it depends on draw.h, draw_noise.h and on token ids,
// and on nothing else of the engine. The log-probability of a token is computed in
// hub/engine/scores.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// The tokens that are allowed next in one sequence's answer. Used by one thread at a time.
class TokenMask {
  public:
    virtual ~TokenMask() = default;
    // Returns one bit per token: bit id % 64 of word id / 64, [(vocab_size + 63) / 64]. A bit is
    // set if the token may follow `answer`; at least one bit is set. `tokens_left` is the number of
    // tokens that may still follow, the next one included. Ids beyond the last word are not
    // allowed. The span is valid until the next call.
    virtual std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                                   std::uint32_t tokens_left) = 0;
};

struct SamplingOptions {
    double temperature = 1.0;
    double top_p = 1.0;
    std::uint32_t sample_top_k = 0;  // 0: off
    double min_p = 0.0;
    // CTRL: divides positive and multiplies negative logits of tokens seen in the prompt or the
    // output
    double repetition_penalty = 1.0;
    double presence_penalty = 0.0;   // OpenAI: subtracted once from tokens in the output
    double frequency_penalty = 0.0;  // OpenAI: subtracted per occurrence in the output
    std::map<TokenId, float> logit_bias;
    std::uint64_t seed = 0;
    std::uint32_t choice = 0;         // index of this answer among the answers to one request
    std::shared_ptr<TokenMask> mask;  // null: every token is allowed
};

struct TokenLogit {
    TokenId id = 0;
    float logit = 0;
};
// A row as a device returns it: its likeliest tokens by descending logit and ascending id, and the
// logarithm of the sum of exp() over all logits (NaN where a logit is not a number).
struct LikeliestTokens {
    std::vector<TokenLogit> tokens;
    float log_sum_exp = 0;
};

class Sampler {
  public:
    // `tokens_max` is the length limit of the answer, from which the mask gets its `tokens_left`.
    Sampler(SamplingOptions options, std::span<const TokenId> prompt,
            std::uint32_t tokens_max = 0xffff'ffff);
    // Returns the next token; `logits` [vocab_size] is not changed.
    TokenId choose(std::span<const float> logits);
    // Returns how many of a row's likeliest tokens choose() needs to return the same token as with
    // all logits. 0: choose() needs all logits.
    std::uint32_t num_likeliest() const;
    // Returns the token that all logits would give. Requires num_likeliest() tokens or more in
    // `likeliest`.
    TokenLogit choose(std::span<const TokenLogit> likeliest);
    void accept(TokenId id);  // the token entered the output

  private:
    bool adjusts() const;
    // Applies penalties, bias and, last, the mask. The result is in scratch_ if any of these
    // applies.
    std::span<const float> adjust(std::span<const float> logits);
    void forbid(std::span<float> logits);  // removes the tokens that the mask does not allow
    TokenId draw(std::span<const float> logits, std::span<const TokenId> ids);

    SamplingOptions options_;
    std::map<TokenId, std::uint32_t> output_counts_;
    std::vector<TokenId> prompt_tokens_;  // sorted, unique
    std::uint32_t position_;              // position of the next token in the sequence
    std::uint32_t tokens_max_;
    std::vector<TokenId> answer_;  // the answer so far, for the mask
    std::vector<float> scratch_;
};

}  // namespace moex
