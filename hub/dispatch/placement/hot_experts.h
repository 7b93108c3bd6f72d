// Finds units that are used or predicted so often that one more copy of each is worth its memory.
// It counts the hub's own rounds and hints, halved every `half_life`; counters that workers report
// are not used. It only makes wishes: the directory decides whether there is room.
//
// The thresholds for hot and cold differ by a factor of two, and a unit that was given a copy gets
// no other for `rests_for`. So a unit costs at most one download in that time, whatever the load
// is. Pure: `now` is given. Owner: the dispatch strand. Memory: one number per unit.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "hub/base/clock.h"

namespace moex {

struct HotExpertsOptions {
    std::uint32_t copies_max = 0;  // most units with one more copy at a time; 0: the feature is off
    Duration half_life = 60s;      // for the counts
    // Multiples of the mean count of all units: a unit above hot_above is hot, and one below
    // cold_below is cold again.
    double hot_above = 3, cold_below = 1.5;
    // A smaller count is never hot. Below half of count_min the copy is taken back, whatever the
    // mean is.
    double count_min = 32;
    std::uint32_t at_once = 4;  // most units that become hot in one look()
    Duration look_every = 2s;
    Duration rests_for = 60s;
};

class HotExperts {
  public:
    HotExperts(std::uint32_t num_units, HotExpertsOptions options)
        : options_(options),
          counts_(num_units) {}

    bool is_on() const { return options_.copies_max > 0; }
    // Counts `weight` requests, or a prediction with this confidence. Requires is_on().
    void count(std::uint32_t unit, double weight) {
        counts_[unit] += weight;
        counted_ = true;
    }
    // The time of the next look(), once something was counted; nullopt if it is already scheduled
    // or not needed.
    std::optional<TimePoint> next_look(TimePoint now);

    struct Verdict {
        std::vector<std::uint32_t> hot;   // hottest first; each may have one more copy
        std::vector<std::uint32_t> cold;  // units that lose their extra copy
        bool look_again = false;  // at now + look_every, even if nothing is counted until then
    };
    // `extras`: the units that have one more copy now. O(units).
    Verdict look(TimePoint now, const std::set<std::uint32_t>& extras);
    // The unit was given a copy.
    void given(std::uint32_t unit, TimePoint now) { given_[unit] = now; }

    double count_of(std::uint32_t unit) const { return counts_[unit]; }
    const HotExpertsOptions& options() const { return options_; }

  private:
    void decay(TimePoint now);

    HotExpertsOptions options_;
    std::vector<double> counts_;                // [num_units]
    std::map<std::uint32_t, TimePoint> given_;  // copies given within the last `rests_for`
    std::optional<TimePoint> decayed_at_;
    bool counted_ = false;  // since the last look()
    bool waits_ = false;    // a look() is scheduled
};

}  // namespace moex
