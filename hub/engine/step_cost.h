// How long steps last, learned from those that ran, and how many rows of prompts fit beside
// sequences that decode without making these wait long.
// A step's time is taken as: what its decode rows cost alone; a part for having rows of prompts at
// all, since the first ones meet experts and weights that the others then share; a part for each
// row; and for attention one that grows with a chunk's position, and one with that of each row. A
// prompt's rows cost whatever they cost in steps of this kind.
// Pure: durations are given. Owner: the engine's thread.
// Source: Ljung and Soderstrom, "Theory and Practice of Recursive Identification", 1983 (least
// squares that forget, section 2.6); what steps of late tell nothing about stays as it was learned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hub/base/clock.h"

namespace moex {

// What a step was made of.
struct StepShape {
    std::uint32_t decode_rows = 0;
    std::uint32_t prompt_rows = 0;
    std::uint64_t prompt_positions = 0;  // of the rows of prompts, summed
    std::uint64_t chunk_positions = 0;   // of the first row of each prompt, summed
    std::uint32_t num_prompts = 0;       // that wait, with rows in the step or without
};

class StepCost {
  public:
    // A step with decode rows lasts at most about `stretch_max` times what these cost alone. Beside
    // a crowd of prompts, more of them than sequences that decode, the part beyond 1 is up to
    // `crowd_max` times as much. Two prompts are no crowd. Where steps often last longer than
    // expected the part beyond 1 is smaller, half as much at least, so that 99 of 100 steps last
    // at most late_max * stretch_max times as long.
    explicit StepCost(double stretch_max) : stretch_max_(stretch_max) {}

    // Learns from one whole step. Steps of prompts alone teach nothing about steps with decode
    // rows.
    void record(const StepShape& shape, Duration took);

    // Whether the next step with so many decode rows should have no prompt, to see what they cost:
    // where that is not known, nor of half or twice as many, and now and then because it changes as
    // answers grow.
    bool wants_plain_step(std::uint32_t decode_rows) const;

    // Time for chunks of prompts beside so many decode rows while `num_prompts` wait, without what
    // any prompt row at all costs; a part of that at least. Known when a plain step is not wanted.
    Duration prompt_time(std::uint32_t decode_rows, std::uint32_t num_prompts) const;
    // How many rows of one prompt from `position` on take about `time`; may be 0.
    std::uint32_t rows_within(Duration time, std::uint32_t position) const;
    Duration rows_time(std::uint32_t rows, std::uint32_t position) const;
    // How long a step should last; 0 where that is not known.
    Duration expected(const StepShape& shape) const;
    // The first prompt gets so many rows, whatever the times promise: 1, and now and then one more
    // than steps had for long, since their times do not tell what more would cost.
    std::uint32_t prompt_rows_min() const { return prompt_rows_min_; }
    // No step takes more rows of prompts than this, whatever the times promise: twice as many as
    // one that kept within its time.
    std::uint32_t prompt_rows_max() const { return prompt_rows_max_; }

  private:
    static constexpr std::uint32_t prompt_rows_first = 2;
    // With a stretch of 2 no gap is meant to be more than 2.5 times as long.
    static constexpr double crowd_max = 1.5;
    // What 99 of 100 steps keep, over what they aim at.
    static constexpr double late_max = 1.5;

    // What rows of prompts cost, in ms: by each of these of a step.
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
    std::uint32_t steps_since_plain_ = 0;     // with rows of prompts
    Terms cost_ms_{};                         // of each term, none below 0
    std::array<Terms, num_terms> moments_{};  // weighted products of terms, those of late
    Terms moments_ms_{};                      // of terms and times
    std::uint32_t num_learned_ = 0;
    // Of took over expected: 1 of 100 steps is above it. At first as on a machine of its own.
    double late_log_ = 0.18;
    std::uint32_t rows_alike_ = 0, steps_alike_ = 0;
    double extra_alike_ms_ = 0;
    std::uint32_t prompt_rows_min_ = 1, prompt_rows_max_ = prompt_rows_first;
};

}  // namespace moex
