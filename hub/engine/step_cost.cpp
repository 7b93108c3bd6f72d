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

// What so many decode rows cost alone: as measured, or from the nearest numbers that were, at most
// twice or half as many.
std::optional<double> StepCost::plain_ms(std::uint32_t decode_rows) const {
    const auto measured = [&](std::uint32_t rows) {
        const bool is_near = rows <= 2 * decode_rows && 2 * rows >= decode_rows;
        return is_near && rows < measured_ms_.size() ? measured_ms_[rows] : 0.0;
    };
    std::uint32_t fewer = decode_rows, more = decode_rows;
    while (2 * fewer > decode_rows && measured(fewer) == 0) --fewer;
    while (more < 2 * decode_rows && measured(more) == 0) ++more;

    const double low = measured(fewer), high = measured(more), rows = decode_rows;
    if (fewer == more) return low;
    if (low > 0 && high > 0) return low + (high - low) * (rows - fewer) / (more - fewer);
    // Between a step whose time is all its bytes' and one whose time is all its rows'.
    if (low > 0) return low * (1 + (rows / fewer - 1) / 2);
    if (high > 0) return high * (1 - (1 - rows / more) / 2);
    return std::nullopt;
}

double StepCost::stretch(std::uint32_t decode_rows, std::uint32_t num_prompts) const {
    const double crowd = (num_prompts - 2.0) / std::max(1u, decode_rows);
    return 1 + (stretch_max_ - 1) * std::clamp(crowd, 1.0, crowd_max);
}

bool StepCost::wants_plain_step(std::uint32_t decode_rows) const {
    return !plain_ms(decode_rows) || steps_since_plain_ >= plain_step_every;
}

void StepCost::record(const StepShape& shape, Duration took) {
    if (shape.decode_rows == 0) return;
    const double ms = std::max(to_ms(took), 1e-6);

    if (shape.prompt_rows == 0) {
        steps_since_plain_ = 0;
        if (measured_ms_.size() <= shape.decode_rows) measured_ms_.resize(shape.decode_rows + 1);
        double& plain = measured_ms_[shape.decode_rows];
        plain = plain == 0
                    ? ms
                    : plain +
                          plain_gain *
                              (std::clamp(ms, plain / surprise_max, plain * surprise_max) - plain);
        return;
    }

    ++steps_since_plain_;
    const std::optional<double> plain = plain_ms(shape.decode_rows);
    if (!plain) return;  // a step that was composed before this one was known

    const double each = std::max(0.0, ms - *plain) / shape.prompt_rows,
                 kilo_position = static_cast<double>(shape.prompt_positions) /
                                 (shape.prompt_rows * positions_unit);
    const double error = each - (row_ms_ + kilo_position_ms_ * kilo_position);
    const double gain = knows_rows_ ? row_gain / (1 + kilo_position * kilo_position) : 1;
    row_ms_ = std::max(0.0, row_ms_ + gain * error);
    if (knows_rows_)
        kilo_position_ms_ = std::max(0.0, kilo_position_ms_ + gain * error * kilo_position);
    knows_rows_ = true;

    const bool kept_time = ms <= 1.5 * stretch(shape.decode_rows, shape.num_prompts) * *plain;
    prompt_rows_max_ = kept_time ? std::max(prompt_rows_max_, 2 * shape.prompt_rows)
                                 : std::max(prompt_rows_first, shape.prompt_rows);
}

Duration StepCost::prompt_time(std::uint32_t decode_rows, std::uint32_t num_prompts) const {
    return from_ms((stretch(decode_rows, num_prompts) - 1) * plain_ms(decode_rows).value_or(0));
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
