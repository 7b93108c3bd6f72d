// Learns how long steps last, and decides how many prompt rows fit beside sequences that decode
// without making those wait long.
// The model of a step's time is a sum: the cost of its decode rows alone; a fixed cost for having
// any prompt rows, since the first ones load experts and weights that the others then share; a cost
// for each prompt row; and for attention one cost that grows with the position of a chunk and one
// that grows with the position of each row. The cost of prompt rows is learned only from steps that
// have both kinds of rows.
// Pure: durations are given. Owner: the engine's thread.
// Source: Ljung and Soderstrom, "Theory and Practice of Recursive Identification", 1983 (least
// squares with forgetting, section 2.6). A coefficient about which recent steps give no information
// keeps its learned value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hub/base/clock.h"

namespace moex {

// The composition of a step.
struct StepShape {
    std::uint32_t decode_rows = 0;
    std::uint32_t prompt_rows = 0;
    std::uint64_t prompt_positions = 0;  // positions of all prompt rows, summed
    std::uint64_t chunk_positions = 0;   // position of the first row of each prompt, summed
    std::uint32_t num_prompts = 0;       // waiting prompts, with rows in the step or without
};

class StepCost {
  public:
    // A step with decode rows lasts at most about `stretch_max` times as long as its decode rows
    // alone. Beside a crowd of prompts (more prompts than sequences that decode; two prompts are no
    // crowd) the part beyond 1 is up to `crowd_max` times as large. Where steps often last longer
    // than expected, the part beyond 1 is reduced, but never below half, so that 99 of 100 steps
    // last at most late_max * stretch_max times as long.
    explicit StepCost(double stretch_max) : stretch_max_(stretch_max) {}

    // Learns from one whole step. Steps of prompts alone say nothing about steps with decode rows.
    void record(const StepShape& shape, Duration took);

    // Returns true if the next step with this number of decode rows should have no prompt rows, so
    // that their cost is measured. This is so where the cost is not known, nor that of half or
    // twice as many rows. It is also so now and then, because the cost changes as answers grow.
    bool wants_plain_step(std::uint32_t decode_rows) const;

    // Returns the time for prompt chunks beside `decode_rows` decode rows while `num_prompts`
    // prompts wait. The fixed cost of having any prompt rows is already subtracted, but a part of
    // that cost remains as a minimum. The result is known when wants_plain_step() is false.
    Duration prompt_time(std::uint32_t decode_rows, std::uint32_t num_prompts) const;
    // Returns how many rows of one prompt from `position` on take about `time`; may be 0.
    std::uint32_t rows_within(Duration time, std::uint32_t position) const;
    Duration rows_time(std::uint32_t rows, std::uint32_t position) const;
    // Returns how long a step should last; 0 where that is not known.
    Duration expected(const StepShape& shape) const;
    // The number of rows that the first prompt gets, whatever the predicted times: 1, and now and
    // then one row more than recent steps had, since the times of those steps do not show what more
    // rows would cost.
    std::uint32_t prompt_rows_min() const { return prompt_rows_min_; }
    // The most prompt rows that a step takes, whatever the predicted times: twice as many as a step
    // that kept within its time.
    std::uint32_t prompt_rows_max() const { return prompt_rows_max_; }

  private:
    static constexpr std::uint32_t prompt_rows_first = 2;
    // With a stretch of 2 no gap should be more than 2.5 times as long.
    static constexpr double crowd_max = 1.5;
    // The limit that 99 of 100 steps keep, relative to their target.
    static constexpr double late_max = 1.5;

    // The terms of the cost of prompt rows, in ms per unit of each term.
    enum Term : std::size_t { any, rows, chunk_kilo_positions, row_kilo_positions, num_terms };
    using Terms = std::array<double, num_terms>;
    static Terms terms_of(const StepShape& shape);

    std::optional<double> plain_ms(std::uint32_t decode_rows) const;
    double stretch(std::uint32_t decode_rows, std::uint32_t num_prompts) const;
    void learn_plain(std::uint32_t decode_rows, double ms);
    void learn_terms(const Terms& terms, double extra_ms, double weight);
    void learn_spread(double took_over_expected);
    void choose_trial(std::uint32_t prompt_rows, double extra_ms, double plain);

    double stretch_max_;
    std::vector<double> measured_ms_;         // plain steps by decode rows; 0: not known
    std::uint32_t steps_since_plain_ = 0;     // steps with prompt rows since the last plain step
    Terms cost_ms_{};                         // per term, none below 0
    std::array<Terms, num_terms> moments_{};  // weighted products of terms, over recent steps
    Terms moments_ms_{};                      // weighted products of terms and times
    std::uint32_t num_learned_ = 0;
    // Logarithm of measured over expected time that 1 of 100 steps exceeds. The initial value is
    // typical of a machine without other load.
    double late_log_ = 0.18;
    std::uint32_t rows_alike_ = 0, steps_alike_ = 0;
    double extra_alike_ms_ = 0;
    std::uint32_t prompt_rows_min_ = 1, prompt_rows_max_ = prompt_rows_first;
};

}  // namespace moex
