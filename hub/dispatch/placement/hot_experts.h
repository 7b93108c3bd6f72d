// Finds units that are used or predicted so often that one more copy of each is worth its memory.
// It counts the hub's own rounds and hints, and halves the counts every `half_life`. Counters that
// workers report are not used. The result is only a wish: the unit directory decides whether a
// worker has room.
//
// The thresholds for hot and cold differ by a factor of two, and a unit that was given a copy gets
// no further copy for `rests_for`. So a unit costs at most one download in that time, whatever the
// load is. The class is pure: the caller passes `now`. Owner: the dispatch strand. Memory: one
// number per unit.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "hub/base/clock.h"

namespace moex {

struct HotExpertsOptions {
    // most units that have one more copy at the same time; 0: the feature is off
    std::uint32_t copies_max = 0;
    Duration half_life = 60s;  // half-life of the counts
    // Multiples of the mean count of all units: a unit above hot_above is hot, and one below
    // cold_below is cold again.
    double hot_above = 3, cold_below = 1.5;
    // A unit with a smaller count is never hot. When its count falls below half of count_min, its
    // extra copy is taken back, whatever the mean is.
    double count_min = 32;
    std::uint32_t at_once = 4;  // most units that become hot in one call of look()
    Duration look_every = 2s;
    Duration rests_for = 60s;
};

class HotExperts {
  public:
    HotExperts(std::uint32_t num_units, HotExpertsOptions options)
        : options_(options),
          counts_(num_units) {}

    bool is_on() const { return options_.copies_max > 0; }
    // Counts `weight` requests of the unit; for a prediction, `weight` is its confidence. Requires
    // is_on().
    void count(std::uint32_t unit, double weight) {
        counts_[unit] += weight;
        counted_ = true;
    }
    // Returns the time of the next look(), once a request was counted; nullopt if that look() is
    // already scheduled or not needed.
    std::optional<TimePoint> next_look(TimePoint now);

    struct Verdict {
        std::vector<std::uint32_t> hot;   // units that may have one more copy, hottest first
        std::vector<std::uint32_t> cold;  // units that lose their extra copy
        // call look() again at now + look_every, even if nothing is counted until then
        bool look_again = false;
    };
    // Decides which units become hot or cold. `extras`: the units that have one more copy now.
    // O(units).
    Verdict look(TimePoint now, const std::set<std::uint32_t>& extras);
    // Call this after the directory gave the unit an extra copy.
    void given(std::uint32_t unit, TimePoint now) { given_[unit] = now; }

    double count_of(std::uint32_t unit) const { return counts_[unit]; }
    const HotExpertsOptions& options() const { return options_; }

  private:
    void decay(TimePoint now);

    HotExpertsOptions options_;
    std::vector<double> counts_;  // [num_units]: count of each unit
    // time of each unit's extra copy, if it was given within the last `rests_for`
    std::map<std::uint32_t, TimePoint> given_;
    std::optional<TimePoint> decayed_at_;
    bool counted_ = false;  // a request or prediction was counted since the last look()
    bool waits_ = false;    // the next look() is scheduled
};

}  // namespace moex
