// Measured times of the layers of a span, here and at a worker, by the number of rows. Pure.
//   12 layers, 1 row: 31 ms here (12 rounds of experts), 24 ms away (one round trip)
//   64 rows: 75 ms here; so 16 rows, which were not measured, take 31 to 75 ms here
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "hub/base/clock.h"

namespace moex {

class SpanTimes {
  public:
    void record(std::uint32_t num_rows, Duration took);
    // Returns the expected time for `num_rows` rows: of the same number of rows, to the next power
    // of two, or else of a similar number. nullopt: nothing was measured.
    std::optional<Duration> expected(std::uint32_t num_rows) const;
    // Return bounds of that time, because more rows never take less: the times of the nearest
    // numbers of rows that were measured, from this one downwards and upwards. Both are `expected`
    // if this number was measured, to the next power of two. nullopt: there is no bound.
    std::optional<Duration> at_least(std::uint32_t num_rows) const;
    std::optional<Duration> at_most(std::uint32_t num_rows) const;

  private:
    static constexpr std::size_t num_classes = 12, num_recent = 5;
    // The newest measurements of a number of rows, and their median. A single one that was
    // disturbed changes little, and a change of the line counts after three.
    struct Recent {
        std::array<Duration, num_recent> times{};
        std::size_t count = 0;
        Duration median{};
    };
    static std::size_t class_of(std::uint32_t num_rows);
    std::optional<Duration> median_of(std::size_t number) const;
    std::array<Recent, num_classes> recent_;
};

}  // namespace moex
