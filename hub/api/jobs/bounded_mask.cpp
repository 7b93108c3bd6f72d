#include "hub/api/jobs/bounded_mask.h"

#include <algorithm>

namespace moex {

BoundedMask::BoundedMask(TokenBounds bounds, std::vector<TokenId> own_ends,
                         std::vector<TokenId> asked_ends, std::size_t vocab_size,
                         std::shared_ptr<TokenMask> inner)
    : bounds_(std::move(bounds)),
      own_ends_(std::move(own_ends)),
      asked_ends_(std::move(asked_ends)),
      vocab_size_(vocab_size),
      inner_(std::move(inner)) {}

void BoundedMask::forbid(std::span<const TokenId> ids) {
    for (const TokenId id : ids)
        if (id / 64 < bits_.size()) bits_[id / 64] &= ~(std::uint64_t{1} << id % 64);
}

std::span<const std::uint64_t> BoundedMask::allowed(std::span<const TokenId> answer,
                                                    std::uint32_t tokens_left) {
    std::span<const std::uint64_t> inner;
    if (inner_) {
        inner = inner_->allowed(answer, tokens_left);
        bits_.assign(inner.begin(), inner.end());
    } else {
        bits_.assign((vocab_size_ + 63) / 64, ~std::uint64_t{0});
    }

    const bool is_early = answer.size() < bounds_.min_tokens;
    if (is_early || bounds_.ignores_end) forbid(own_ends_);
    if (is_early) forbid(asked_ends_);
    forbid(bounds_.suppressed);
    for (const std::vector<TokenId>& word : bounds_.bad_words) {
        const auto before = std::span(word).first(word.size() - 1);
        const bool is_begun = answer.size() >= before.size() &&
                              std::equal(before.begin(), before.end(),
                                         answer.end() - static_cast<std::ptrdiff_t>(before.size()));
        if (is_begun) forbid(std::span(word).last(1));
    }

    const bool is_empty = std::all_of(bits_.begin(), bits_.end(),
                                      [](std::uint64_t word) { return word == 0; });
    if (is_empty && inner_) return inner;
    if (is_empty) bits_.assign(bits_.size(), ~std::uint64_t{0});
    return bits_;
}

// The rules of this mask may forbid a token of the form's text. Such a guess costs a row.
std::vector<TokenId> BoundedMask::forced(std::span<const TokenId> answer, std::size_t tokens_max) {
    return inner_ ? inner_->forced(answer, tokens_max) : std::vector<TokenId>{};
}

}  // namespace moex
