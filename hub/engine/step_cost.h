// How long steps last, learned from those that ran, and how many rows of prompts fit beside
// sequences that decode without making these wait long.
// A step's time is taken as: what its decode rows cost alone, and for each row of a prompt a part
// that is fixed and a part that grows with its position. A prompt's rows cost whatever they cost
// in steps of this kind: a few rows beside a decode are dearer each than a whole chunk's.
// Pure: durations are given. Owner: the engine's thread.
// Source: Nagumo and Noda, "A learning method for system identification", 1967 (normalised LMS).
#pragma once

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
    std::uint32_t num_prompts = 0;       // that wait, with rows in the step or without
};

class StepCost {
  public:
    // A step with decode rows lasts at most about `stretch_max` times what these cost alone. Beside
    // a crowd of prompts, more of them than sequences that decode, the part beyond 1 is up to
    // `crowd_max` times as much. Two prompts are no crowd.
    explicit StepCost(double stretch_max) : stretch_max_(stretch_max) {}

    // Learns from one whole step. Steps of prompts alone teach nothing about steps with decode
    // rows.
    void record(const StepShape& shape, Duration took);

    // Whether the next step with so many decode rows should have no prompt, to see what they cost:
    // where that is not known, nor of half or twice as many, and now and then because it changes as
    // answers grow.
    bool wants_plain_step(std::uint32_t decode_rows) const;

    // Time for rows of prompts beside so many decode rows while `num_prompts` wait; known when a
    // plain step is not wanted.
    Duration prompt_time(std::uint32_t decode_rows, std::uint32_t num_prompts) const;
    // How many rows from `position` on fit into `time`; may be 0.
    std::uint32_t rows_within(Duration time, std::uint32_t position) const;
    Duration rows_time(std::uint32_t rows, std::uint32_t position) const;
    // No step takes more rows of prompts than this, whatever the times promise: twice as many as
    // one that kept within its time.
    std::uint32_t prompt_rows_max() const { return prompt_rows_max_; }

  private:
    static constexpr std::uint32_t prompt_rows_first = 2;
    // With a stretch of 2 no gap is meant to be more than 2.5 times as long.
    static constexpr double crowd_max = 1.5;

    std::optional<double> plain_ms(std::uint32_t decode_rows) const;
    double stretch(std::uint32_t decode_rows, std::uint32_t num_prompts) const;

    double stretch_max_;
    std::vector<double> measured_ms_;           // plain steps by decode rows; 0: not known
    std::uint32_t steps_since_plain_ = 0;       // with rows of prompts
    double row_ms_ = 0, kilo_position_ms_ = 0;  // of a prompt's row, and per 1,024 positions
    bool knows_rows_ = false;
    std::uint32_t prompt_rows_max_ = prompt_rows_first;
};

}  // namespace moex
