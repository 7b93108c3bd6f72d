#include "hub/engine/step_cost.h"

#include <algorithm>
#include <cmath>

namespace moex {
namespace {

// The share of a new measurement: a machine has hiccups.
constexpr double plain_gain = 0.2, row_gain = 0.5;
// A single measurement counts as no more than twice or half of what was expected.
constexpr double surprise_max = 2.0;
constexpr std::uint32_t plain_step_every = 64;
constexpr double positions_unit = 1024;

Duration from_ms(double ms) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms));
}

}  // namespace

bool StepCost::wants_plain_step(std::uint32_t decode_rows) const {
    const bool is_known = decode_rows < plain_ms_.size() && plain_ms_[decode_rows] > 0;
    return !is_known || steps_since_plain_ >= plain_step_every;
}

void StepCost::record(const StepShape& shape, Duration took) {
    if (shape.decode_rows == 0) return;
    if (plain_ms_.size() <= shape.decode_rows) plain_ms_.resize(shape.decode_rows + 1);
    double& plain = plain_ms_[shape.decode_rows];
    const double ms = std::max(to_ms(took), 1e-6);

    if (shape.prompt_rows == 0) {
        steps_since_plain_ = 0;
        plain = plain == 0
                    ? ms
                    : plain +
                          plain_gain *
                              (std::clamp(ms, plain / surprise_max, plain * surprise_max) - plain);
        return;
    }

    ++steps_since_plain_;
    if (plain == 0) return;  // a step that was composed before this one was known

    const double each = std::max(0.0, ms - plain) / shape.prompt_rows,
                 kilo_position = static_cast<double>(shape.prompt_positions) /
                                 (shape.prompt_rows * positions_unit);
    const double error = each - (row_ms_ + kilo_position_ms_ * kilo_position);
    const double gain = knows_rows_ ? row_gain / (1 + kilo_position * kilo_position) : 1;
    row_ms_ = std::max(0.0, row_ms_ + gain * error);
    if (knows_rows_)
        kilo_position_ms_ = std::max(0.0, kilo_position_ms_ + gain * error * kilo_position);
    knows_rows_ = true;

    const bool kept_time = ms <= 1.5 * stretch_max_ * plain;
    prompt_rows_max_ = kept_time ? std::max(prompt_rows_max_, 2 * shape.prompt_rows)
                                 : std::max(prompt_rows_first, shape.prompt_rows);
}

Duration StepCost::prompt_time(std::uint32_t decode_rows) const {
    return from_ms((stretch_max_ - 1) * plain_ms_[decode_rows]);
}

Duration StepCost::rows_time(std::uint32_t rows, std::uint32_t position) const {
    const double growth = kilo_position_ms_ / positions_unit;
    return from_ms(rows * (row_ms_ + growth * position) + growth * rows * rows / 2);
}

// The largest n of n·first + n²·growth/2 <= time.
std::uint32_t StepCost::rows_within(Duration time, std::uint32_t position) const {
    const double ms = to_ms(time), growth = kilo_position_ms_ / positions_unit,
                 first = row_ms_ + growth * position;
    if (ms <= 0) return 0;
    if (first <= 0) return prompt_rows_max_;

    const double rows = growth * ms < 1e-9 * first * first
                            ? ms / first
                            : (std::sqrt(first * first + 2 * growth * ms) - first) / growth;
    return static_cast<std::uint32_t>(std::min<double>(rows, prompt_rows_max_));
}

}  // namespace moex
