#include "hub/engine/scores.h"

#include <algorithm>

#include "hub/engine/kernels.h"

namespace moex {
namespace {

// Returns the ids of the `count` largest logits in descending order, with ties by lower id. It
// makes one pass over the logits, and few of them pass the first comparison.
std::vector<TokenId> largest(std::span<const float> logits, std::size_t count) {
    std::vector<TokenId> ids;
    const auto before = [&](TokenId a, TokenId b) { return logits[a] > logits[b]; };
    for (TokenId id = 0; id < logits.size(); ++id) {
        if (ids.size() == count && !before(id, ids.back())) continue;
        if (ids.size() == count) ids.pop_back();
        ids.insert(std::upper_bound(ids.begin(), ids.end(), id, before), id);
    }
    return ids;
}

}  // namespace

SampledToken score(std::span<const float> logits, TokenId id, std::uint32_t top_logprobs) {
    const float normalizer = log_sum_exp(logits);
    SampledToken scored{.id = id, .logprob = logits[id] - normalizer, .top = {}};
    if (top_logprobs > 0)
        for (const TokenId other :
             largest(logits, std::min<std::size_t>(top_logprobs, logits.size())))
            scored.top.push_back({other, logits[other] - normalizer});
    return scored;
}

SampledToken sample(Sampler& sampler, std::span<const float> logits, std::uint32_t top_logprobs) {
    return score(logits, sampler.choose(logits), top_logprobs);
}

SampledToken sample(Sampler& sampler, const LikeliestTokens& likeliest) {
    const TokenLogit drawn = sampler.choose(likeliest.tokens);
    return {.id = drawn.id, .logprob = drawn.logit - likeliest.log_sum_exp, .top = {}};
}

void log_softmax(std::span<const float> logits, std::span<float> logprobs) {
    const float normalizer = log_sum_exp(logits);
    for (std::size_t i = 0; i < logits.size(); ++i) logprobs[i] = logits[i] - normalizer;
}

}  // namespace moex
