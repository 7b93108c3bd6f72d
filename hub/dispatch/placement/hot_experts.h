// Which experts are asked so often, or foreseen so often, that one more copy of each is worth its
// room. Counts the hub's own rounds and hints, a half of them forgotten every `half_life`; what
// workers say counts for nothing. It names wishes: whether there is room is the directory's to say.
//
// Between hot and cold lies a factor of two, and a unit that was given a copy is given none again
// for `rests_for`: so no unit costs more than one download in that time, whatever is asked.
// Pure: `now` is given. Owner: the dispatch strand. Memory: a number for each unit.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "hub/base/clock.h"

namespace moex {

struct HotExpertsOptions {
    std::uint32_t copies_max = 0;  // units that have one more copy at a time; 0: none has
    Duration half_life = 60s;      // of what was counted
    // Times the mean of all units: hot from here on, and cold again below.
    double hot_above = 3, cold_below = 1.5;
    // Less than this says nothing; below half of it a copy goes whatever the others have.
    double count_min = 32;
    std::uint32_t at_once = 4;  // units that become hot in one look
    Duration look_every = 2s;
    Duration rests_for = 60s;
};

class HotExperts {
  public:
    HotExperts(std::uint32_t num_units, HotExpertsOptions options)
        : options_(options),
          counts_(num_units) {}

    bool is_on() const { return options_.copies_max > 0; }
    // It was asked `weight` times, or foreseen that surely. Requires is_on().
    void count(std::uint32_t unit, double weight) {
        counts_[unit] += weight;
        counted_ = true;
    }
    // When look() is due, once something was counted; nullopt: it waits already, or need not.
    std::optional<TimePoint> next_look(TimePoint now);

    struct Verdict {
        std::vector<std::uint32_t> hot;   // the hottest first: each may have one copy more
        std::vector<std::uint32_t> cold;  // of those that have one
        bool look_again = false;          // at now + look_every, without anything being counted
    };
    // `extras`: the units that have one more copy now. O(units).
    Verdict look(TimePoint now, const std::set<std::uint32_t>& extras);
    // It was given one.
    void given(std::uint32_t unit, TimePoint now) { given_[unit] = now; }

    double count_of(std::uint32_t unit) const { return counts_[unit]; }
    const HotExpertsOptions& options() const { return options_; }

  private:
    void decay(TimePoint now);

    HotExpertsOptions options_;
    std::vector<double> counts_;                // [num_units]
    std::map<std::uint32_t, TimePoint> given_;  // within the last `rests_for`
    std::optional<TimePoint> decayed_at_;
    bool counted_ = false;  // since the last look
    bool waits_ = false;    // for a look
};

}  // namespace moex
