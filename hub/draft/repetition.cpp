#include "hub/draft/repetition.h"

#include <algorithm>
#include <iterator>

namespace moex {
namespace {

// Most earlier occurrences of the last tokens that are compared.
constexpr int tries_max = 16;
// The least repetition of each class.
constexpr std::uint32_t class_lengths[] = {2, 3, 4, 6, 9, 14, 21, 32};
constexpr std::uint32_t repeated_max = *std::rbegin(class_lengths);
constexpr std::uint32_t no_position = ~0u;

// Returns the two tokens that end at position `end` as one number.
std::uint64_t pair_at(std::span<const TokenId> tokens, std::uint32_t end) {
    return std::uint64_t{tokens[end - 1]} << 32 | tokens[end];
}

}  // namespace

// The pair at the very end is not added, because nothing follows it yet.
void Repetitions::read(std::span<const TokenId> tokens) {
    before_.reserve(tokens.size());
    for (std::size_t end = before_.size() + 1; end < tokens.size(); ++end) {
        const auto at = static_cast<std::uint32_t>(end - 1);
        if (at == 0) {
            before_.push_back(no_position);
            continue;
        }
        const auto [found, is_new] = latest_.try_emplace(pair_at(tokens, at), no_position);
        before_.push_back(found->second);
        found->second = at;
    }
}

// Returns the latest position at or before which the last tokens of `tokens` occurred with the
// longest repetition, and the length of that repetition; 0 if there is none.
Repetitions::Found Repetitions::find(std::span<const TokenId> tokens) const {
    Found best;
    if (tokens.size() < length_min + 1) return best;
    const auto last = static_cast<std::uint32_t>(tokens.size() - 1);
    const auto found = latest_.find(pair_at(tokens, last));
    std::uint32_t at = found == latest_.end() ? no_position : found->second;
    for (int i = 0; i < tries_max && at != no_position; ++i, at = before_[at]) {
        std::uint32_t length = 0;
        while (length <= at && length < repeated_max &&
               tokens[at - length] == tokens[last - length])
            ++length;
        if (length > best.length) best = {at, length};
        if (length == repeated_max) break;
    }
    return best;
}

std::uint32_t Repetitions::propose(std::span<const TokenId> tokens, std::uint32_t tokens_max,
                                   std::vector<TokenId>& proposed) const {
    const auto [end, length] = find(tokens);
    if (length < length_min) return 0;
    // A repetition that reaches the end of the text continues in the proposal itself, so that a
    // text which repeats a short period gets a whole proposal.
    const std::size_t period = tokens.size() - 1 - end;
    for (std::uint32_t i = 0; i < tokens_max; ++i) proposed.push_back(tokens[end + 1 + i % period]);
    return length;
}

std::uint32_t Repetitions::class_of(std::uint32_t length) {
    const auto* const above = std::upper_bound(std::begin(class_lengths), std::end(class_lengths),
                                               length);
    return static_cast<std::uint32_t>(above - class_lengths) - 1;
}

}  // namespace moex
