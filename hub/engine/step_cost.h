// Estimates the time of steps, and decides how many prompt rows fit into a step without making the
// sequences that decode wait long.
// The model of a step's time is a sum: the cost of its decode rows alone; a fixed cost for having
// any prompt rows, since the first prompt rows load experts and weights that further rows share; a
// cost for each prompt row; and for attention one cost that grows with the position of a chunk and
// one that grows with the position of each row. The cost of prompt rows is learned only from steps
// that have both kinds of rows.
// A line to the workers, or the machine, may become slower or faster within a moment. After several
// steps in a row that all lasted much longer, or all much shorter, than expected, the decode rows
// alone are measured; if that step surprises as well, all durations of decode rows are learned
// anew.
// This class reads no clock: the caller passes durations. Owner: the engine's thread.
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

// Numbers of rows of a step, and sums of their positions.
struct StepShape {
    // rows of the sequences that decode, with their drafted rows, which cost about as much
    std::uint32_t decode_rows = 0;
    std::uint32_t drafted_rows = 0;
    std::uint32_t prompt_rows = 0;
    std::uint64_t prompt_positions = 0;  // sum of the positions of all prompt rows
    // sum over the prompts of the position of the prompt's first row
    std::uint64_t chunk_positions = 0;
    // number of prompts in progress, with or without rows in this step
    std::uint32_t num_prompts = 0;
};

class StepCost {
  public:
    // A step with decode rows lasts at most about `stretch_max` times as long as its decode rows
    // alone would. If there is a crowd of prompts (more prompts than sequences that decode; two
    // prompts are no crowd) the part of the factor beyond 1 is up to `crowd_max` times as large.
    // Where steps often last longer than expected, that part is reduced, but never below half, so
    // that 99 of 100 steps last at most late_max * stretch_max times as long.
    explicit StepCost(double stretch_max) : stretch_max_(stretch_max) {}

    // Records the duration of a step that was not stopped. Steps without decode rows are ignored,
    // since they do not show what prompt rows cost together with decode rows.
    void record(const StepShape& shape, Duration took);

    // Returns true if the next step with this number of decode rows should have no prompt rows, so
    // that the cost of these decode rows alone is measured. That is the case if neither this cost
    // nor the cost of half to twice as many rows is known. It is also the case after every 16 steps
    // with prompt rows, because the cost changes as answers grow, and after 3 steps in a row that
    // lasted more than twice as long, or less than half as long, as expected.
    bool wants_plain_step(std::uint32_t decode_rows) const;

    // Returns the time that a step with `decode_rows` decode rows, of which `drafted_rows` are
    // drafted, may spend on prompt chunks while `num_prompts` prompts wait. The fixed cost of
    // having any prompt rows is already subtracted, but a part of that cost remains as a minimum.
    // The result is known when wants_plain_step() is false.
    Duration prompt_time(std::uint32_t decode_rows, std::uint32_t num_prompts,
                         std::uint32_t drafted_rows = 0) const;
    // Returns how many rows of one prompt from `position` on take about `time`; may be 0.
    std::uint32_t rows_within(Duration time, std::uint32_t position) const;
    Duration rows_time(std::uint32_t rows, std::uint32_t position) const;
    // Returns the expected duration of a step; 0 if it is not known.
    Duration expected(const StepShape& shape) const;
    // Returns the number of rows that the first prompt gets in any case, whatever the predicted
    // times: 1, or sometimes one row more than recent steps had, since the times of those steps do
    // not show what more rows would cost.
    std::uint32_t prompt_rows_min() const { return prompt_rows_min_; }
    // Returns the most prompt rows that a step may take, whatever the predicted times: twice as
    // many as an earlier step that stayed within its time limit.
    std::uint32_t prompt_rows_max() const { return prompt_rows_max_; }

  private:
    static constexpr std::uint32_t prompt_rows_first = 2;
    // Factor for crowds of prompts. With a stretch_max of 2, no step should last more than 2.5
    // times as long as its decode rows alone.
    static constexpr double crowd_max = 1.5;
    // 99 of 100 steps should last at most this many times as long as their target duration.
    static constexpr double late_max = 1.5;

    // The terms of the cost of prompt rows: having any, their number, and sums of positions in
    // units of 1,024. Costs are in ms per unit of a term.
    enum Term : std::size_t { any, rows, chunk_kilo_positions, row_kilo_positions, num_terms };
    using Terms = std::array<double, num_terms>;
    static Terms terms_of(const StepShape& shape);

    std::optional<double> plain_ms(std::uint32_t decode_rows) const;
    double stretch(std::uint32_t num_sequences, std::uint32_t num_prompts) const;
    void notice(double took_over_expected);
    void learn_plain(std::uint32_t decode_rows, double ms);
    void learn_terms(const Terms& terms, double extra_ms, double weight);
    void learn_spread(double took_over_expected);
    void choose_trial(std::uint32_t prompt_rows, double extra_ms, double plain);

    double stretch_max_;
    // duration of steps without prompt rows, by number of decode rows; 0: not known
    std::vector<double> measured_ms_;
    // number of steps with prompt rows since the last step without prompt rows
    std::uint32_t steps_since_plain_ = 0;
    // Steps in a row that surprised in the same direction, and `late_log_` before the first one.
    std::uint32_t surprises_ = 0;
    bool surprised_by_long_ = false;
    double late_log_before_ = 0;
    Terms cost_ms_{};  // learned cost of each term, never below 0
    // weighted sums of products of two terms, over recent steps
    std::array<Terms, num_terms> moments_{};
    Terms moments_ms_{};  // weighted sums of products of a term and the measured ms
    std::uint32_t num_learned_ = 0;
    // Logarithm of measured over expected duration that 1 of 100 steps exceeds. The initial value
    // is typical of a machine without other load.
    double late_log_ = 0.18;
    std::uint32_t rows_alike_ = 0, steps_alike_ = 0;
    double extra_alike_ms_ = 0;
    std::uint32_t prompt_rows_min_ = 1, prompt_rows_max_ = prompt_rows_first;
};

}  // namespace moex
