// The log-probability that a model gives a token, and the log-probabilities of the likeliest tokens
// at the same position. Both refer to the model's own distribution, before temperature, top-k and
// top-p.
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

// Lets the sampler choose a token and returns the token with its log-probability and the
// `top_logprobs` likeliest tokens.
SampledToken sample(Sampler& sampler, std::span<const float> logits, std::uint32_t top_logprobs);
// Does the same from the likeliest tokens alone. Requires at least sampler.num_likeliest() tokens.
SampledToken sample(Sampler& sampler, const LikeliestTokens& likeliest);

// Writes the log softmax of `logits`: the log-probability of every token id.
void log_softmax(std::span<const float> logits, std::span<float> logprobs);

}  // namespace moex
