// Measured times of calls by their number of (expert, row) pairs, for the hub or for one worker.
//
// The time of a call is not proportional to its pairs: a worker behind a slow line needs nearly the
// same time for one pair and for a hundred, and the hub does not. Therefore each power of two has
// an estimate of its own. Example: calls of 33 to 64 pairs share one estimate. For a number of
// pairs that was not measured, the neighbouring estimates give bounds.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "hub/base/clock.h"

namespace moex {

class PairTimes {
  public:
    // Classes: 1, 2, up to 4, up to 8, ... up to 4,096 pairs, and more.
    static constexpr std::size_t num_classes = 14;
    static std::size_t class_of(std::uint32_t num_pairs);

    // Records a call of `num_pairs` pairs that took `took`. A sample counts as at most four times
    // the mean, so that one stalled call does not move the mean far.
    void record(std::uint32_t num_pairs, Duration took, TimePoint now);
    // The same for a probe, which finds the worker less prepared than calls that follow each other
    // do (its GPU's clock is low, its thread sleeps). A shorter time counts for more than a longer
    // one.
    void record_probe(std::uint32_t num_pairs, Duration took, TimePoint now);

    // The time that a call of `num_pairs` pairs takes at most or at least, judged by the mean times
    // of its class or of other classes. at_most() is nullopt while nothing was measured.
    std::optional<Duration> at_most(std::uint32_t num_pairs) const;
    Duration at_least(std::uint32_t num_pairs) const;
    // The time that a call of `num_pairs` pairs probably takes: the mean of its class, otherwise
    // that of the next smaller class, times the square root of the ratio of pairs, and no more than
    // that of a larger class. nullopt while nothing was measured.
    std::optional<Duration> expected(std::uint32_t num_pairs) const;
    // nullopt until a call of this class was measured
    std::optional<TimePoint> measured_at(std::uint32_t num_pairs) const;

  private:
    struct Estimate {
        std::uint32_t num_samples = 0;
        double mean_ns = 0;
        TimePoint at{};
    };
    void record(std::uint32_t num_pairs, Duration took, TimePoint now, double weight_if_less);

    std::array<Estimate, num_classes> estimates_{};
};

}  // namespace moex
