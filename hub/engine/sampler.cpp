#include "hub/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hub/engine/draw.h"

namespace moex {
Sampler::Sampler(SamplingOptions options, std::span<const TokenId> prompt, std::uint32_t tokens_max)
    : options_(std::move(options)),
      prompt_tokens_(prompt.begin(), prompt.end()),
      position_(static_cast<std::uint32_t>(prompt.size())),
      tokens_max_(tokens_max) {
    std::sort(prompt_tokens_.begin(), prompt_tokens_.end());
    prompt_tokens_.erase(std::unique(prompt_tokens_.begin(), prompt_tokens_.end()),
                         prompt_tokens_.end());
}

void Sampler::accept(TokenId id) {
    ++output_counts_[id];
    ++position_;
    if (options_.mask) answer_.push_back(id);
}

void Sampler::forbid(std::span<float> logits) {
    constexpr float never = -std::numeric_limits<float>::infinity();
    const auto said = static_cast<std::uint32_t>(answer_.size());
    const std::span<const std::uint64_t> allowed = options_.mask->allowed(
        answer_, tokens_max_ - std::min(tokens_max_, said));
    for (std::size_t i = 0; i < logits.size(); ++i)
        if (i / 64 >= allowed.size() || (allowed[i / 64] >> i % 64 & 1) == 0) logits[i] = never;
}

bool Sampler::adjusts() const {
    return options_.repetition_penalty != 1.0 || options_.presence_penalty != 0 ||
           options_.frequency_penalty != 0 || !options_.logit_bias.empty() || options_.mask;
}

std::span<const float> Sampler::adjust(std::span<const float> logits) {
    if (!adjusts()) return logits;
    const bool repetition = options_.repetition_penalty != 1.0;
    const bool counted = options_.presence_penalty != 0 || options_.frequency_penalty != 0;
    scratch_.assign(logits.begin(), logits.end());
    if (repetition) {
        const auto penalize = [&](TokenId id) {
            float& logit = scratch_[id];
            logit = static_cast<float>(logit > 0 ? logit / options_.repetition_penalty
                                                 : logit * options_.repetition_penalty);
        };

        for (const TokenId id : prompt_tokens_)
            if (id < scratch_.size()) penalize(id);
        for (const auto& [id, count] : output_counts_)
            if (id < scratch_.size() &&
                !std::binary_search(prompt_tokens_.begin(), prompt_tokens_.end(), id))
                penalize(id);
    }

    if (counted)
        for (const auto& [id, count] : output_counts_)
            if (id < scratch_.size())
                scratch_[id] -= static_cast<float>(options_.presence_penalty +
                                                   count * options_.frequency_penalty);

    for (const auto& [id, bias] : options_.logit_bias)
        if (id < scratch_.size()) scratch_[id] += bias;

    if (options_.mask) forbid(scratch_);
    return scratch_;
}

TokenId Sampler::draw(std::span<const float> logits, std::span<const TokenId> ids) {
    if (options_.temperature <= 0) return likeliest_token(logits);
    return draw_token(logits,
                      {.temperature = options_.temperature,
                       .top_p = options_.top_p,
                       .top_k = options_.sample_top_k,
                       .min_p = options_.min_p},
                      {.seed = options_.seed, .choice = options_.choice, .position = position_},
                      ids);
}

TokenId Sampler::choose(std::span<const float> logits) { return draw(adjust(logits), {}); }

std::uint32_t Sampler::num_likeliest() const {
    if (adjusts()) return 0;
    return options_.temperature <= 0 ? 1 : options_.sample_top_k;
}

// Every cut (top-k, top-p, min-p) keeps the first tokens in the order of descending logits, and all
// weights are relative to the first token. So a draw from a vocabulary of only the tokens that
// top-k keeps, sorted by id, equals a draw from the whole vocabulary.
TokenLogit Sampler::choose(std::span<const TokenLogit> likeliest) {
    std::vector<TokenLogit> tokens(likeliest.begin(), likeliest.end());
    tokens.resize(std::min<std::size_t>(tokens.size(), num_likeliest()));
    MOEX_CHECK(!tokens.empty(), "a draw needs at least one token");
    std::sort(tokens.begin(), tokens.end(),
              [](const TokenLogit& a, const TokenLogit& b) { return a.id < b.id; });

    scratch_.clear();
    std::vector<TokenId> ids;
    for (const TokenLogit& token : tokens) {
        scratch_.push_back(token.logit);
        ids.push_back(token.id);
    }
    return tokens[draw(scratch_, ids)];
}

}  // namespace moex
