// Chooses how many micro-batches a step's rows are cut into.
// While one micro-batch waits for its experts, the hub computes the layer of the next one. That
// hides the latency of a long link. Without such a latency it costs time, since hub and workers
// read their weights once for each micro-batch. The right number depends on the link, so it is
// measured with real steps.
// The first trial uses as many micro-batches as the waiting time of uncut steps suggests. Later
// trials use one more or one less now and then, or go further while the result is not slower. The
// faster number is kept. Steps of about as many rows (a power of two) learn together; steps with
// prompt rows learn apart from steps without.
// The bits of a row do not depend on the number. Pure: durations are given. Owner: the engine's
// thread.
// Source: Huang et al., "GPipe", NeurIPS 2019 (micro-batches).
#pragma once

#include <array>
#include <cstdint>

#include "hub/base/clock.h"
#include "hub/engine/step_cost.h"

namespace moex {

class MicroBatches {
  public:
    // Largest number for one step. A larger number makes each micro-batch too small to pay, on a
    // link of any latency.
    static constexpr std::uint32_t most_ever = 4;

    // `fixed` 0: choose 1 to `most` from measured step times. Otherwise always `fixed`, or the
    // number of rows if that is smaller.
    MicroBatches(std::uint32_t most, std::uint32_t fixed);

    // Returns the number for the next step, from 1 to its number of rows.
    std::uint32_t choose(const StepShape& shape) const;
    // Learns from one whole step of `number` micro-batches. `waited` is the time waited for
    // experts, summed over all rounds.
    void record(const StepShape& shape, std::uint32_t number, Duration took, Duration waited);

  private:
    // Durations of the last steps of a kind, in ms. A single slow step does not move their
    // median.
    struct Times {
        static constexpr std::size_t most = 5;
        std::array<double, most> ms{};
        std::size_t count = 0, next = 0;

        void add(double value);
        double median() const;
        bool are_enough(std::size_t wanted) const;
    };
    // State for steps of about as many rows.
    struct Kind {
        std::uint32_t number = 1;  // the number in use
        std::uint32_t tried = 0;   // the number under trial for a few steps; 0: no trial
        std::int32_t reach = 1;    // distance of the next trial from the number in use
        bool goes_on = false;      // the next trial follows without a pause
        Times times, trial;
        double waited_share = -1;  // of an uncut step, a moving average; -1: not known
        double settled_ms = 0;     // the median when the last trial ended
        // Steps since the last trial, and steps to wait before the next one; pause 0: before the
        // first.
        std::uint32_t steps_since = 0, pause = 0;
    };

    static std::size_t kind_of(const StepShape& shape);  // index in kinds_
    std::uint32_t number_of(std::size_t index) const;
    bool wants_trial(const Kind& kind) const;
    static std::int32_t first_reach(double waited_share);
    void begin_trial(Kind& kind, std::uint32_t num_rows) const;
    void end_trial(Kind& kind) const;

    // the last class has all steps of 4,096 rows and more
    static constexpr std::size_t num_sizes = 13;
    std::uint32_t most_, fixed_;
    std::array<Kind, 2 * num_sizes> kinds_;  // without prompt rows, then with prompt rows
};

}  // namespace moex
