#include "web-worker/local/local_drafts.h"

#include <algorithm>

namespace moex {

void LocalDrafts::begin(std::span<const TokenId> prompt, Steps steps,
                        std::optional<std::uint32_t> wanted) {
    wanted_ = wanted;
    tokens_.assign(prompt.begin(), prompt.end());
    repetitions_ = {};
    proposed_.clear();
    rates_ = DraftRates(32);
    budget_ = &budgets_[static_cast<std::size_t>(steps)];
}

TokenDrafts::TokenIds LocalDrafts::propose(std::uint32_t tokens_max) {
    repetitions_.read(tokens_);
    proposed_.clear();
    const std::uint32_t length = repetitions_.propose(tokens_, tokens_max, proposed_);
    if (length > 0) proposal_class_ = Repetitions::class_of(length);
    return proposed_;
}

std::uint32_t LocalDrafts::num_paying() {
    if (wanted_) return std::min(*wanted_, static_cast<std::uint32_t>(proposed_.size()));
    std::vector<double> gains;
    double gain = 1;
    for (std::uint32_t i = 0; i < proposed_.size(); ++i) {
        gain *= rates_.rate(proposal_class_, i, all_rates_);
        gains.push_back(gain);
    }
    return budget_->choose(1, gains);
}

void LocalDrafts::record(TokenIds drawn, std::uint32_t num_rows, std::chrono::nanoseconds took) {
    rates_.record(proposal_class_, proposed_, drawn);
    all_rates_.record(proposal_class_, proposed_, drawn);
    if (took.count() > 0) budget_->record(1, num_rows, took);
    tokens_.insert(tokens_.end(), drawn.begin(), drawn.end());
    proposed_.clear();
}

}  // namespace moex
