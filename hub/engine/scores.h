// What a model says of a token: its log-probability, and those of the likeliest beside it. Of the
// model's own distribution, before temperature and cuts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/sampler.h"

namespace moex {

struct TokenLogprob {
    TokenId id = 0;
    float logprob = 0;
};
struct SampledToken {
    TokenId id = 0;
    float logprob = 0;
    std::vector<TokenLogprob> top;  // `top_logprobs` many, descending
};

// `id` with its log-probability under `logits` [vocab_size], and the `top_logprobs` likeliest.
SampledToken score(std::span<const float> logits, TokenId id, std::uint32_t top_logprobs);

// The sampler's choice, with its score.
SampledToken sample(Sampler& sampler, std::span<const float> logits, std::uint32_t top_logprobs);
// By the likeliest tokens, where these are enough for it.
SampledToken sample(Sampler& sampler, const LikeliestTokens& likeliest);

// log softmax of logits[id] for all ids.
void log_softmax(std::span<const float> logits, std::span<float> logprobs);

}  // namespace moex
