// Chooses how many micro-batches a step's rows are cut into.
// While one micro-batch waits for its experts, the hub computes the layer of the next one. That
// hides the latency of a long link. On a short link more micro-batches only cost time, since hub
// and workers read their weights once for each micro-batch. The right number depends on the link,
// so it is measured with real steps.
// The first trial uses as many micro-batches as the waiting time of uncut steps suggests. From time
// to time a later trial uses one micro-batch more or one less; further trials follow in the same
// direction while the result is not slower. The faster number is kept. A larger number is compared
// once more with the one before it a little later: the first steps after a pause become faster by
// themselves, because clocks rise and contributors wake up. One number is learned for all steps
// with a number of rows between the same powers of two, and separate numbers for steps with and
// without prompt rows.
// The bits of a row do not depend on the number of micro-batches. This class reads no clock: the
// caller passes durations. Owner: the engine's thread.
// Source: Huang et al., "GPipe", NeurIPS 2019 (micro-batches).
#pragma once

#include <array>
#include <cstdint>

#include "hub/base/clock.h"
#include "hub/engine/step_cost.h"

namespace moex {

class MicroBatches {
  public:
    // Largest number of micro-batches in one step. With more, each micro-batch is too small to be
    // worth its cost, on a link of any latency.
    static constexpr std::uint32_t most_ever = 4;

    // If `fixed` is 0, the number of micro-batches is chosen from 1 to `most` by measured step
    // times. Otherwise it is always `fixed`, or the number of rows if that is smaller.
    MicroBatches(std::uint32_t most, std::uint32_t fixed);

    // Returns the number of micro-batches for the next step, from 1 to the step's number of rows.
    std::uint32_t choose(const StepShape& shape) const;
    // Records the duration of a whole step of `number` micro-batches. `waited` is the time that
    // the step waited for experts, summed over all rounds.
    void record(const StepShape& shape, std::uint32_t number, Duration took, Duration waited);

  private:
    // Durations of the last five steps of a kind, in ms. A single slow step does not move their
    // median.
    struct Times {
        static constexpr std::size_t most = 5;
        std::array<double, most> ms{};
        std::size_t count = 0, next = 0;

        void add(double value);
        double median() const;
        bool are_enough(std::size_t wanted) const;
    };
    // The values learned for one kind of steps: steps with about the same number of rows.
    struct Kind {
        std::uint32_t number = 1;  // number of micro-batches in use
        std::uint32_t tried = 0;   // number of micro-batches under trial; 0: no trial
        std::int32_t reach = 1;    // the next trial uses `number` + `reach` micro-batches
        bool goes_on = false;      // true if the next trial follows without a pause
        // the number before it became larger, with which it is compared once more; 0: none
        std::uint32_t before = 0;
        Times times, trial;
        // share of an uncut step's time spent waiting, a moving average; -1: not known
        double waited_share = -1;
        double settled_ms = 0;  // median duration of steps when the last trial ended, in ms
        // `steps_since`: steps since the last trial. `pause`: steps to wait before the next trial;
        // 0 before the first trial.
        std::uint32_t steps_since = 0, pause = 0;
    };

    static std::size_t kind_of(const StepShape& shape);  // index in kinds_
    std::uint32_t number_of(std::size_t index) const;
    bool wants_trial(const Kind& kind) const;
    static std::int32_t first_reach(double waited_share);
    void begin_trial(Kind& kind, std::uint32_t num_rows) const;
    void end_trial(Kind& kind) const;

    // Number of size classes of steps; the last class has all steps of 4,096 rows and more.
    static constexpr std::size_t num_sizes = 13;
    std::uint32_t most_, fixed_;
    // kinds of steps without prompt rows, then those with prompt rows
    std::array<Kind, 2 * num_sizes> kinds_;
};

}  // namespace moex
