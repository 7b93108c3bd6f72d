#include "hub/engine/draft_rates.h"

#include <algorithm>

namespace moex {
namespace {
// The rate of a first position before anything was observed, and the number of observations that a
// rate which is taken over counts for.
constexpr double first_rate = 0.5, usual_weight = 4;
}  // namespace

void DraftRates::record(std::uint32_t proposal_class, std::span<const TokenId> proposed,
                        std::span<const TokenId> drawn) {
    for (std::size_t i = 0; i < std::min(proposed.size(), drawn.size()); ++i) {
        Cell& cell = cells_[proposal_class][std::min<std::size_t>(i, num_positions - 1)];
        const bool is_right = proposed[i] == drawn[i];
        const double kept = 1 - 1 / memory_;
        cell.seen = kept * cell.seen + 1;
        cell.accepted = kept * cell.accepted + (is_right ? 1 : 0);
        if (!is_right) return;
    }
}

double DraftRates::blend(const Cell& cell, double usual) {
    return (cell.accepted + usual_weight * usual) / (cell.seen + usual_weight);
}

const DraftRates::Cell& DraftRates::cell(std::uint32_t proposal_class,
                                         std::uint32_t position) const {
    return cells_[proposal_class][std::min(position, num_positions - 1)];
}

double DraftRates::rate(std::uint32_t proposal_class, std::uint32_t position) const {
    double usual = first_rate;
    for (std::uint32_t i = 0; i <= std::min(position, num_positions - 1); ++i)
        usual = blend(cell(proposal_class, i), usual);
    return usual;
}

double DraftRates::rate(std::uint32_t proposal_class, std::uint32_t position,
                        const DraftRates& others) const {
    return blend(cell(proposal_class, position), others.rate(proposal_class, position));
}

}  // namespace moex
