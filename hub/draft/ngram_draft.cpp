#include "hub/draft/ngram_draft.h"

#include <algorithm>
#include <unordered_map>

namespace moex {
namespace {

// A proposal needs a repetition of at least this many tokens.
constexpr std::uint32_t repeated_min = 2;
// Most earlier occurrences of the last tokens that are compared.
constexpr int tries_max = 16;
// The least repetition of each class.
constexpr std::uint32_t class_lengths[draft_classes] = {2, 3, 4, 6, 9, 14, 21, 32};
constexpr std::uint32_t repeated_max = class_lengths[draft_classes - 1];
constexpr std::uint32_t no_position = ~0u;

// The positions of every pair of neighbouring tokens, in lists from the latest position back.
class PairPositions : public Draft {
  public:
    // Adds the pairs of tokens that are new since the last call. The pair at the very end is not
    // added, because nothing follows it yet.
    void read(std::span<const TokenId> tokens) {
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
    struct Repetition {
        std::uint32_t end = 0, length = 0;
    };
    Repetition find(std::span<const TokenId> tokens) const {
        Repetition best;
        if (tokens.size() < repeated_min + 1) return best;
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

  private:
    // Returns the two tokens that end at position `end` as one number.
    static std::uint64_t pair_at(std::span<const TokenId> tokens, std::uint32_t end) {
        return std::uint64_t{tokens[end - 1]} << 32 | tokens[end];
    }
    std::unordered_map<std::uint64_t, std::uint32_t> latest_;  // last position of each pair
    std::vector<std::uint32_t> before_;  // for each position: the one before with the same pair
};

}  // namespace

std::unique_ptr<Draft> NgramDrafts::begin(const GenerationRequest&) {
    return std::make_unique<PairPositions>();
}

void NgramDrafts::propose(std::span<DraftCall> calls) {
    for (DraftCall& call : calls) {
        auto& pairs = static_cast<PairPositions&>(*call.draft);
        pairs.read(call.tokens);
        const auto [end, length] = pairs.find(call.tokens);
        call.proposed.clear();
        if (length < repeated_min) continue;
        const auto* const above = std::upper_bound(std::begin(class_lengths),
                                                   std::end(class_lengths), length);
        call.proposal_class = static_cast<std::uint32_t>(above - class_lengths) - 1;
        // A repetition that reaches the end of the sequence continues in the proposal itself, so
        // that a text which repeats a short period gets a whole proposal.
        const std::size_t period = call.tokens.size() - 1 - end;
        for (std::uint32_t i = 0; i < call.tokens_max; ++i)
            call.proposed.push_back(call.tokens[end + 1 + i % period]);
    }
}

}  // namespace moex
