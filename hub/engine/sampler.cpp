#include "hub/engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "hub/engine/kernels.h"

namespace moex {
namespace {

// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
std::uint64_t splitmix64(std::uint64_t& state) {
    std::uint64_t z = (state += 0x9e37'79b9'7f4a'7c15);
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
    return z ^ (z >> 31);
}
std::uint64_t rotate_left(std::uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

// xoshiro256**. Source: Blackman and Vigna, "Scrambled
// linear pseudorandom number generators", 2021.
std::uint64_t next_random(std::uint64_t (&s)[4]) {
    const std::uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

// Below e^-40 of the most likely token a candidate is never drawn in practice: not worth its exp().
constexpr double log_ratio_min = -40.0;

}  // namespace

Sampler::Sampler(SamplingOptions options, std::span<const TokenId> prompt)
    : options_(std::move(options)),
      prompt_tokens_(prompt.begin(), prompt.end()) {
    std::sort(prompt_tokens_.begin(), prompt_tokens_.end());
    prompt_tokens_.erase(std::unique(prompt_tokens_.begin(), prompt_tokens_.end()),
                         prompt_tokens_.end());
    std::uint64_t seed = options_.seed;
    for (std::uint64_t& word : random_state_) word = splitmix64(seed);
}

void Sampler::accept(TokenId id) { ++output_counts_[id]; }

std::span<const float> Sampler::adjust(std::span<const float> logits) {
    const bool repetition = options_.repetition_penalty != 1.0;
    const bool counted = options_.presence_penalty != 0 || options_.frequency_penalty != 0;
    if (!repetition && !counted && options_.logit_bias.empty()) return logits;
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

    return scratch_;
}

TokenId Sampler::draw(std::span<const float> logits) {
    const auto greedy = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) -
                                             logits.begin());
    if (options_.temperature <= 0) return greedy;

    // Relative to the most likely token, whose own is 1.
    const double most = logits[greedy];
    const auto probability = [&](std::uint32_t id) {
        return std::exp((logits[id] - most) / options_.temperature);
    };

    const double log_floor = std::max(
        log_ratio_min, options_.min_p > 0 ? std::log(options_.min_p) : log_ratio_min);

    order_.clear();
    for (std::uint32_t id = 0; id < logits.size(); ++id)
        if ((logits[id] - most) / options_.temperature >= log_floor) order_.push_back(id);

    // Brings the likeliest of what lies behind the first `sorted` to the
    // front, in order; a vocabulary is long, what top-p keeps is not.
    const auto before = [&](std::uint32_t a, std::uint32_t b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };

    std::size_t sorted = 0;
    const auto sort_up_to = [&](std::size_t count) {
        count = std::min(count, order_.size());
        const auto first = order_.begin() + static_cast<std::ptrdiff_t>(sorted),
                   last = order_.begin() + static_cast<std::ptrdiff_t>(count);
        if (last != order_.end()) std::nth_element(first, last, order_.end(), before);
        std::sort(first, last, before);
        sorted = count;
    };

    if (options_.sample_top_k != 0 && options_.sample_top_k < order_.size()) {
        sort_up_to(options_.sample_top_k);
        order_.resize(options_.sample_top_k);
    }

    double sum = 0;
    for (const std::uint32_t id : order_) sum += probability(id);
    if (options_.top_p < 1.0) {
        // The fewest tokens that reach top_p together; always at least one.
        double reached = 0;
        std::size_t count = 0;
        while (count < order_.size() && (count == 0 || reached < options_.top_p * sum)) {
            if (count == sorted) sort_up_to(std::max<std::size_t>(256, 4 * count));
            reached += probability(order_[count++]);
        }
        order_.resize(count);
        sum = reached;
    }

    double left = static_cast<double>(next_random(random_state_) >> 11) * 0x1p-53 * sum;
    for (std::size_t i = 0; i + 1 < order_.size(); ++i) {
        left -= probability(order_[i]);
        if (left < 0) return order_[i];
    }
    return order_.empty() ? greedy : order_.back();  // none: the logits are not numbers
}

SampledToken Sampler::sample(std::span<const float> logits, std::uint32_t top_logprobs) {
    const float normalizer = log_sum_exp(logits);
    SampledToken sampled;
    sampled.id = draw(adjust(logits));
    sampled.logprob = logits[sampled.id] - normalizer;

    if (top_logprobs > 0) {
        const std::size_t count = std::min<std::size_t>(top_logprobs, logits.size());
        order_.resize(logits.size());
        for (std::uint32_t id = 0; id < logits.size(); ++id) order_[id] = id;

        std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count),
                          order_.end(), [&](std::uint32_t a, std::uint32_t b) {
                              return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                          });

        for (std::size_t i = 0; i < count; ++i)
            sampled.top.push_back({order_[i], logits[order_[i]] - normalizer});
    }

    return sampled;
}

void log_softmax(std::span<const float> logits, std::span<float> logprobs) {
    const float normalizer = log_sum_exp(logits);
    for (std::size_t i = 0; i < logits.size(); ++i) logprobs[i] = logits[i] - normalizer;
}

}  // namespace moex
