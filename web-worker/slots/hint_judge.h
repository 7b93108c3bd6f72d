// Judges whether a predicted expert is worth its copy to a slot.
//
// A hub predicts more experts than a layer will ask for (over-fetch), the most likely first.
// Following all predictions fails in two ways: an expert of a rank that is rarely right costs a
// copy for nothing; and if slots are few, it evicts an expert that is requested again. Groups show
// how often each happens. HintJudge therefore estimates two shares, each as a moving average:
//   right(rank)  how often the expert of this rank was among those that its layer's next group
//                requested, whether it was brought or not;
//   missed()     how often an expert that was evicted for a hint was requested by its layer's next
//                group.
// An expert is brought to a free slot if its rank is right often enough (right_min), and may evict
// another one if its rank is right more often than evicted experts are missed.
// Example: hint {7, 8} for layer 3, then a group of layer 3 with {7, 20}: rank 0 was right, rank 1
// was wrong. Limits: a rank counts as right at first, so that a new predictor is tried.
// This class is pure (no clock, no I/O) and belongs to one thread.
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

    // The last rank also counts for all later ranks.
    static constexpr std::size_t num_ranks = 16;
    // The weight of the newest group in the moving average of an estimate.
    static constexpr double newest_share = 1.0 / 16;
    // Experts of ranks that are right less often than this are not brought at all.
    static constexpr double right_min = 1.0 / 16;

    // Notes that a frame of hints has arrived, with the most likely expert first. For each layer in
    // the frame, the frame replaces the earlier hints.
    void hinted(std::span<const Unit> units);
    // Notes that a group has requested `units`, all of the same layer. `num_slots`: the worker's
    // slots.
    void asked(std::span<const Unit> units, std::uint32_t num_slots);
    // Notes that a caller requested `unit` and will request it again. From now on `unit` does not
    // count as a prediction.
    void certain(Unit unit);
    // Notes that `unit` was evicted for a hint.
    void left(Unit unit) { left_[unit.layer].insert(unit.expert); }

    // Returns true if `unit` is worth its copy. `leaves`: true if another expert must be evicted
    // for `unit`. A unit that no hint predicts is always worth its copy.
    bool worth(Unit unit, bool leaves) const;

    double right(std::size_t rank) const { return right_.at(rank); }
    double missed() const { return missed_; }

  private:
    // Returns the rank of `unit` in its layer's newest hint; num_ranks if the hint does not contain
    // it.
    std::size_t rank_of(Unit unit) const;

    // By layer: the predicted experts, in order of rank.
    std::map<std::uint16_t, std::vector<std::uint16_t>> hinted_;
    // By layer: experts evicted for hints since the layer's last group.
    std::map<std::uint16_t, std::set<std::uint16_t>> left_;
    // Number of experts requested by all groups so far.
    std::uint64_t num_asked_ = 0;
    // By layer: num_asked_ after the layer's last group.
    std::map<std::uint16_t, std::uint64_t> asked_before_;
    std::array<double, num_ranks> right_{};
    double missed_ = 0;  // share of evicted experts that were requested again
};

}  // namespace moex
