// Into how many micro-batches a step's rows are cut. While the experts of one are asked for, the
// hub computes the layer of the next: that hides a long line, and costs where there is none, since
// hub and workers read their weights once for each. So the steps that run tell: first some are cut
// into as many as what uncut ones wait would hide, then now and then some into one more or one
// less, or more than that while it is not slower, and whichever number was faster is kept. Steps of
// about as many rows (a power of two) learn together, those with rows of prompts apart.
// A row's bits do not depend on it.
// Pure: durations are given. Owner: the engine's thread.
// Source: Huang et al., "GPipe", NeurIPS 2019 (micro-batches).
#pragma once

#include <array>
#include <cstdint>

#include "hub/base/clock.h"
#include "hub/engine/step_cost.h"

namespace moex {

class MicroBatches {
  public:
    // Of a step: more make each too small to pay, on a line of any length.
    static constexpr std::uint32_t most_ever = 4;

    // `fixed` 0: 1 to `most`, by what steps took; else always `fixed`, as far as there are rows.
    MicroBatches(std::uint32_t most, std::uint32_t fixed);

    // Of the next step, 1 to its number of rows.
    std::uint32_t choose(const StepShape& shape) const;
    // Learns from one whole step of `number` micro-batches; `waited` for experts, of all rounds.
    void record(const StepShape& shape, std::uint32_t number, Duration took, Duration waited);

  private:
    // Of the last steps of one kind, in ms; their median is not moved by a hiccup.
    struct Times {
        static constexpr std::size_t most = 5;
        std::array<double, most> ms{};
        std::size_t count = 0, next = 0;

        void add(double value);
        double median() const;
        bool are_enough(std::size_t wanted) const;
    };
    // Steps of about as many rows.
    struct Kind {
        std::uint32_t number = 1;  // that is used
        std::uint32_t tried = 0;   // instead, for a few steps; 0: none
        std::int32_t reach = 1;    // of the next trial, from the number that is used
        bool goes_on = false;      // without a pause
        Times times, trial;
        double waited_share = -1;  // of a step that is not cut, a mean of late; -1: not known
        double settled_ms = 0;     // the median when the last trial ended
        // Since that; so many until the next, 0: before the first.
        std::uint32_t steps_since = 0, pause = 0;
    };

    static std::size_t kind_of(const StepShape& shape);  // its place in kinds_
    std::uint32_t number_of(std::size_t index) const;
    bool wants_trial(const Kind& kind) const;
    static std::int32_t first_reach(double waited_share);
    void begin_trial(Kind& kind, std::uint32_t num_rows) const;
    void end_trial(Kind& kind) const;

    static constexpr std::size_t num_sizes = 13;  // the last has all from 4,096 rows on
    std::uint32_t most_, fixed_;
    std::array<Kind, 2 * num_sizes> kinds_;  // without rows of prompts, then with
};

}  // namespace moex
