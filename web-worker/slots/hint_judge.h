// Whether an expert that the hub foresees is worth its way to a slot. A hub names more than a layer
// will ask for (over-fetch), the surest first; of a rank that is rarely right each costs a copy,
// and where slots are few it puts out one that is asked again. Groups tell both: how often a rank
// was among what its layer asked next, brought or not, and how often who left for a hint was asked
// at its layer's next group. A rank is believed until it was wrong for a while. Pure. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "protocol/messages.h"

namespace moex {

class HintJudge {
  public:
    HintJudge() { right_.fill(1); }

    // Ranks from the last on count as one.
    static constexpr std::size_t num_ranks = 16;
    // How much of an estimate the newest group makes.
    static constexpr double newest_share = 1.0 / 16;
    // Ranks that are right more rarely are not brought at all.
    static constexpr double right_min = 1.0 / 16;

    // A frame of hints, the surest first: the newest word on each layer that it names.
    void hinted(std::span<const Unit> units);
    // A group's experts, of one layer; `num_slots` of the worker.
    void asked(std::span<const Unit> units, std::uint32_t num_slots);
    // Was asked for and will be again: no guess any more.
    void certain(Unit unit);
    // It left its slot for a hint.
    void left(Unit unit) { left_[unit.layer].insert(unit.expert); }

    // To be brought? `leaves`: another leaves its slot for it. Who stands in no hint is.
    bool worth(Unit unit, bool leaves) const;

    double right(std::size_t rank) const { return right_.at(rank); }
    double missed() const { return missed_; }

  private:
    // The rank among its layer's newest hints; none: num_ranks.
    std::size_t rank_of(Unit unit) const;

    std::map<std::uint16_t, std::vector<std::uint16_t>> hinted_;  // of layers: experts by rank
    std::map<std::uint16_t, std::set<std::uint16_t>> left_;       // since a layer's last group
    std::uint64_t num_asked_ = 0;                                 // experts, by all groups
    std::map<std::uint16_t, std::uint64_t> asked_before_;  // the same behind a layer's last group
    std::array<double, num_ranks> right_{};
    double missed_ = 0;  // of those that left
};

}  // namespace moex
