#include "hub/dispatch/placement/hot_experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace moex {

void HotExperts::decay(TimePoint now) {
    if (decayed_at_) {
        const double half_lives = to_ms(now - *decayed_at_) / to_ms(options_.half_life);
        const double factor = std::exp2(-half_lives);
        for (double& count : counts_) count *= factor;
    }
    decayed_at_ = now;
}

std::optional<TimePoint> HotExperts::next_look(TimePoint now) {
    if (waits_ || !counted_) return std::nullopt;
    waits_ = true;
    return now + options_.look_every;
}

HotExperts::Verdict HotExperts::look(TimePoint now, const std::set<std::uint32_t>& extras) {
    decay(now);
    std::erase_if(given_, [&](const auto& one) { return now - one.second >= options_.rests_for; });

    const double mean = std::accumulate(counts_.begin(), counts_.end(), 0.0) /
                        std::max<double>(1, static_cast<double>(counts_.size()));
    const double hot = std::max(options_.count_min, options_.hot_above * mean);
    const double cold = std::max(options_.count_min / 2, options_.cold_below * mean);

    Verdict verdict;
    for (const std::uint32_t unit : extras)
        if (counts_[unit] < cold) verdict.cold.push_back(unit);
    const std::size_t num_kept = extras.size() - verdict.cold.size();
    for (std::uint32_t unit = 0; unit < counts_.size(); ++unit)
        if (counts_[unit] >= hot && !extras.contains(unit) && !given_.contains(unit))
            verdict.hot.push_back(unit);
    std::stable_sort(verdict.hot.begin(), verdict.hot.end(),
                     [this](std::uint32_t a, std::uint32_t b) { return counts_[a] > counts_[b]; });
    const std::size_t room = options_.copies_max -
                             std::min<std::size_t>(options_.copies_max, num_kept);
    verdict.hot.resize(std::min({verdict.hot.size(), room, std::size_t{options_.at_once}}));

    // A unit that is no longer requested or predicted becomes cold by decay alone.
    verdict.look_again = waits_ = std::exchange(counted_, false) || !extras.empty() ||
                                  !verdict.hot.empty();
    return verdict;
}

}  // namespace moex
