// From logits to the next token: penalties, bias, mask, temperature, top-k,
// min-p, top-p, then a draw with the sequence's own generator.
// Greedy when temperature is 0; ties go to the lower id.
// Same seed and logits, same token, on every machine (hub/engine/draw.h).
// Several samplers may choose at once, each on one thread at a time.
// Also in a tab that answers by itself: it sees the draw and tokens, and nothing of the engine.
// What a token's log-probability is stands in hub/engine/scores.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// What may come next in one sequence's answer. Asked on one thread at a time.
class TokenMask {
  public:
    virtual ~TokenMask() = default;
    // A bit a token, bit id % 64 of word id / 64, [(vocab_size + 63) / 64]: set where it may follow
    // `answer`, at least once. `tokens_left` may still come, the next one included. What lies
    // behind the last word may not come. Valid until the next call.
    virtual std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                                   std::uint32_t tokens_left) = 0;
};

struct SamplingOptions {
    double temperature = 1.0;
    double top_p = 1.0;
    std::uint32_t sample_top_k = 0;  // 0: off
    double min_p = 0.0;
    // divides positive and multiplies negative logits of tokens seen in prompt or output (CTRL)
    double repetition_penalty = 1.0;
    double presence_penalty = 0.0;   // OpenAI: subtracted once from tokens in the output
    double frequency_penalty = 0.0;  // OpenAI: subtracted per occurrence in the output
    std::map<TokenId, float> logit_bias;
    std::uint64_t seed = 0;
    std::shared_ptr<TokenMask> mask;  // null: every token may come
};

struct TokenLogit {
    TokenId id = 0;
    float logit = 0;
};
// A row as a device tells it: its likeliest tokens by descending logit and ascending id, and the
// logarithm of what exp() of all logits adds up to (a NaN where one of them is no number).
struct LikeliestTokens {
    std::vector<TokenLogit> tokens;
    float log_sum_exp = 0;
};

class Sampler {
  public:
    // `tokens_max` of the answer, as its mask is told.
    Sampler(SamplingOptions options, std::span<const TokenId> prompt,
            std::uint32_t tokens_max = 0xffff'ffff);
    // The next token; `logits` [vocab_size] is left as it was.
    TokenId choose(std::span<const float> logits);
    // How many of a row's likeliest tokens choose() needs to give what it gives by all logits; 0:
    // it needs these.
    std::uint32_t num_likeliest() const;
    // The one that all logits would give, where there are num_likeliest() of them or more.
    TokenLogit choose(std::span<const TokenLogit> likeliest);
    void accept(TokenId id);  // the token entered the output

  private:
    bool adjusts() const;
    // penalties, bias and, last, the mask; into scratch_ where there are any
    std::span<const float> adjust(std::span<const float> logits);
    void forbid(std::span<float> logits);  // what the mask leaves out
    TokenId draw(std::span<const float> logits);

    SamplingOptions options_;
    std::map<TokenId, std::uint32_t> output_counts_;
    std::vector<TokenId> prompt_tokens_;  // sorted, unique
    std::uint32_t tokens_max_;
    std::vector<TokenId> answer_;  // for the mask
    std::uint64_t random_state_[4];
    std::vector<float> scratch_;
};

}  // namespace moex
