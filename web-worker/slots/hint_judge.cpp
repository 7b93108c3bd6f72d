#include "web-worker/slots/hint_judge.h"

#include <algorithm>
#include <utility>

namespace moex {
namespace {

// The share of missed_ that remains after a group without evictions. If no eviction tests the
// estimate, it is therefore forgotten after some thousand groups, and evictions are tried again.
constexpr double kept_of_missed = 1 - 1.0 / 1024;

}  // namespace

void HintJudge::hinted(std::span<const Unit> units) {
    std::set<std::uint16_t> begun;
    for (const Unit& unit : units) {
        std::vector<std::uint16_t>& of_layer = hinted_[unit.layer];
        if (begun.insert(unit.layer).second) of_layer.clear();
        of_layer.push_back(unit.expert);
    }
}

void HintJudge::asked(std::span<const Unit> units, std::uint32_t num_slots) {
    if (units.empty()) return;
    const std::uint16_t layer = units.front().layer;
    const auto is_asked = [&](std::uint16_t expert) {
        return std::find(units.begin(), units.end(), Unit{layer, expert}) != units.end();
    };
    num_asked_ += units.size();
    const std::uint64_t since = num_asked_ - std::exchange(asked_before_[layer], num_asked_);

    if (const auto hints = hinted_.extract(layer)) {
        const std::vector<std::uint16_t>& experts = hints.mapped();
        for (std::size_t rank = 0; rank < std::min(experts.size(), num_ranks); ++rank) {
            const bool is_last = rank + 1 == num_ranks;
            const std::size_t count = is_last ? experts.size() - rank : 1;
            const auto first = experts.begin() + static_cast<std::ptrdiff_t>(rank);
            const auto were_right = std::count_if(first, first + static_cast<std::ptrdiff_t>(count),
                                                  is_asked);
            const double share = static_cast<double>(were_right) / static_cast<double>(count);
            right_[rank] += newest_share * (share - right_[rank]);
        }
    }

    const auto gone = left_.extract(layer);
    if (!gone) {
        missed_ *= kept_of_missed;
        return;
    }
    // If more experts are requested between two groups of a layer than there are slots, each expert
    // is evicted between them in any case.
    const bool would_stay = num_slots >= since;
    for (const std::uint16_t expert : gone.mapped()) {
        const double was_missed = would_stay && is_asked(expert) ? 1 : 0;
        missed_ += newest_share * (was_missed - missed_);
    }
}

void HintJudge::certain(Unit unit) {
    if (const auto hints = hinted_.find(unit.layer); hints != hinted_.end())
        std::erase(hints->second, unit.expert);
}

std::size_t HintJudge::rank_of(Unit unit) const {
    const auto hints = hinted_.find(unit.layer);
    if (hints == hinted_.end()) return num_ranks;
    const auto at = std::find(hints->second.begin(), hints->second.end(), unit.expert);
    if (at == hints->second.end()) return num_ranks;
    return std::min(static_cast<std::size_t>(at - hints->second.begin()), num_ranks - 1);
}

bool HintJudge::worth(Unit unit, bool leaves) const {
    const std::size_t rank = rank_of(unit);
    if (rank == num_ranks) return true;
    return right_[rank] >= right_min && (!leaves || right_[rank] > missed_);
}

}  // namespace moex
