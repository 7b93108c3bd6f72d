// The log-probability that a model gives a token, and those of the likeliest tokens beside it. Both
// refer to the model's own distribution, before temperature and cuts.
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
    std::vector<TokenLogprob> top;  // `top_logprobs` entries, descending
};

// Returns `id` with its log-probability under `logits` [vocab_size], and the `top_logprobs`
// likeliest tokens.
SampledToken score(std::span<const float> logits, TokenId id, std::uint32_t top_logprobs);

// Returns the sampler's choice, with its score.
SampledToken sample(Sampler& sampler, std::span<const float> logits, std::uint32_t top_logprobs);
// The same from the likeliest tokens, where num_likeliest() tokens are given.
SampledToken sample(Sampler& sampler, const LikeliestTokens& likeliest);

// log softmax of logits[id] for all ids.
void log_softmax(std::span<const float> logits, std::span<float> logprobs);

}  // namespace moex
