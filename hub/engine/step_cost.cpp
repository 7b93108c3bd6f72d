#include "hub/engine/step_cost.h"

#include <algorithm>
#include <cmath>

namespace moex {
namespace {

// Weight of a new measurement in a moving average. It is small because single steps of a machine
// may be disturbed.
constexpr double plain_gain = 0.2;
// A single measurement counts as at most twice and at least half of the expected value.
constexpr double surprise_max = 2.0;
// After this number of steps beyond it, all in the same direction, durations are learned anew.
constexpr std::uint32_t surprises_max = 3;
constexpr std::uint32_t plain_step_every = 16;
// Factor by which the weight of older steps shrinks with each new step: it halves every 46 steps.
constexpr double memory = 0.985;
// Weight of a cost's previous estimate, relative to the weight of recent steps in the new estimate.
constexpr double habit = 0.02;
// Iterations of the coordinate descent that finds the costs. Each search starts from the result of
// the previous search.
constexpr int sweeps = 20;
// After this many steps with the same number of prompt rows, one more prompt row is tried.
constexpr std::uint32_t trial_every = 32;
// Even if the fixed cost of having any prompt rows exceeds the available time, a step gets prompt
// rows that take this share of the fixed cost.
constexpr double worth_it = 0.25;
// Lateness is measured over expected duration of a step. The lateness that a share `late_share` of
// the steps exceeds is tracked, as a logarithm. With each step the tracked value rises by late_step
// * (1 - late_share) at most, or falls by late_step * late_share.
constexpr double late_step = 0.1, late_share = 0.01;
// During the first steps, up to this number, a step may be late because its costs are not learned
// yet. So their lateness is not recorded.
constexpr std::uint32_t steps_to_learn = 12;
constexpr double positions_unit = 1024;

Duration from_ms(double ms) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms));
}

}  // namespace

// Returns the duration of a step with `decode_rows` decode rows alone, in ms: as measured, or
// estimated from the nearest measured numbers of rows (at least half and at most twice as many);
// nullopt if there are none.
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
    // Take the mean of two extremes: a duration that does not depend on the number of rows (reading
    // weights), and a duration proportional to it.
    if (low > 0) return low * (1 + (rows / fewer - 1) / 2);
    if (high > 0) return high * (1 - (1 - rows / more) / 2);
    return std::nullopt;
}

double StepCost::stretch(std::uint32_t num_sequences, std::uint32_t num_prompts) const {
    const double crowd = (num_prompts - 2.0) / std::max(1u, num_sequences);
    const double wanted = 1 + (stretch_max_ - 1) * std::clamp(crowd, 1.0, crowd_max);
    const double in_time = late_max * stretch_max_ / std::exp(late_log_);
    return std::clamp(in_time, (1 + wanted) / 2, wanted);
}

bool StepCost::wants_plain_step(std::uint32_t decode_rows) const {
    return !plain_ms(decode_rows) || steps_since_plain_ >= plain_step_every ||
           surprises_ >= surprises_max;
}

// Counts the steps in a row that lasted much longer, or much shorter, than expected.
void StepCost::notice(double took_over_expected) {
    const bool is_long = took_over_expected > surprise_max,
               is_short = took_over_expected < 1 / surprise_max;
    if (!is_long && !is_short) {
        surprises_ = 0;
        return;
    }
    if (surprises_ == 0 || surprised_by_long_ != is_long) {
        surprises_ = 0;
        late_log_before_ = late_log_;
    }
    surprised_by_long_ = is_long;
    ++surprises_;
}

void StepCost::record(const StepShape& shape, Duration took) {
    if (shape.decode_rows == 0) return;
    const double ms = std::max(to_ms(took), 1e-6);
    if (shape.prompt_rows == 0) return learn_plain(shape.decode_rows, ms);

    ++steps_since_plain_;
    const std::optional<double> plain = plain_ms(shape.decode_rows);
    if (!plain) return;  // not known only if the step was composed before the first measurement

    const double kept_ms = late_max *
                           stretch(shape.decode_rows - shape.drafted_rows, shape.num_prompts) *
                           *plain;
    double counted = ms;
    if (num_learned_ > 0) {
        const double expected_ms = to_ms(expected(shape));
        counted = std::clamp(ms, expected_ms / surprise_max, expected_ms * surprise_max);
        notice(ms / expected_ms);
        learn_spread(ms / expected_ms);
    }
    const double extra_ms = std::max(0.0, counted - *plain);
    learn_terms(terms_of(shape), extra_ms, 1 / (counted * counted));
    choose_trial(shape.prompt_rows, extra_ms, *plain);

    prompt_rows_max_ = ms <= kept_ms ? std::max(prompt_rows_max_, 2 * shape.prompt_rows)
                                     : std::max(prompt_rows_first, shape.prompt_rows);
}

void StepCost::learn_plain(std::uint32_t decode_rows, double ms) {
    steps_since_plain_ = 0;
    const std::optional<double> expected_ms = plain_ms(decode_rows);
    if (expected_ms) notice(ms / *expected_ms);
    if (expected_ms && surprises_ >= surprises_max) {
        measured_ms_.clear();
        late_log_ = late_log_before_;
        surprises_ = 0;
    }
    if (measured_ms_.size() <= decode_rows) measured_ms_.resize(decode_rows + 1);
    double& plain = measured_ms_[decode_rows];
    const double counted = std::clamp(ms, plain / surprise_max, plain * surprise_max);
    plain = plain == 0 ? ms : plain + plain_gain * (counted - plain);
}

StepCost::Terms StepCost::terms_of(const StepShape& shape) {
    Terms terms{};
    terms[any] = 1;
    terms[rows] = shape.prompt_rows;
    terms[chunk_kilo_positions] = static_cast<double>(shape.chunk_positions) / positions_unit;
    terms[row_kilo_positions] = static_cast<double>(shape.prompt_positions) / positions_unit;
    return terms;
}

// Estimates the costs of prompt rows by least squares over recent steps, with coordinate descent
// and no cost below 0. If all chunks have the same size, the steps do not show what other sizes
// cost, and these costs keep their estimates.
void StepCost::learn_terms(const Terms& terms, double extra_ms, double weight) {
    if (num_learned_++ == 0) cost_ms_[rows] = extra_ms / terms[rows];
    for (std::size_t i = 0; i < num_terms; ++i) {
        moments_ms_[i] = memory * moments_ms_[i] + weight * terms[i] * extra_ms;
        for (std::size_t j = 0; j < num_terms; ++j)
            moments_[i][j] = memory * moments_[i][j] + weight * terms[i] * terms[j];
    }

    const Terms last = cost_ms_;
    for (int sweep = 0; sweep < sweeps; ++sweep) {
        for (std::size_t i = 0; i < num_terms; ++i) {
            if (moments_[i][i] <= 0) continue;
            double left = moments_ms_[i] + habit * moments_[i][i] * last[i];
            for (std::size_t j = 0; j < num_terms; ++j)
                if (j != i) left -= moments_[i][j] * cost_ms_[j];
            cost_ms_[i] = std::max(0.0, left / ((1 + habit) * moments_[i][i]));
        }
    }
}

// Tracks the quantile of lateness: `late_log_` moves up for each step above it, and down a little
// for each step below it.
void StepCost::learn_spread(double took_over_expected) {
    if (num_learned_ < steps_to_learn) return;
    const double log = std::log(took_over_expected);
    late_log_ += log > late_log_ ? std::min(log - late_log_, late_step * (1 - late_share))
                                 : -late_step * late_share;
    late_log_ = std::max(0.0, late_log_);
}

// Allows the next step one prompt row more than recent steps had, if its expected duration stays
// within the limit when the additional row costs as much as the others.
void StepCost::choose_trial(std::uint32_t prompt_rows, double extra_ms, double plain) {
    if (prompt_rows != rows_alike_) {
        rows_alike_ = prompt_rows;
        steps_alike_ = 0;
        extra_alike_ms_ = extra_ms;
    }
    ++steps_alike_;
    extra_alike_ms_ += plain_gain * (extra_ms - extra_alike_ms_);

    const double trial_ms = extra_alike_ms_ * (prompt_rows + 1) / prompt_rows;
    const bool is_in_time = plain + trial_ms <= late_max * stretch_max_ * plain;
    prompt_rows_min_ = steps_alike_ >= trial_every && is_in_time ? prompt_rows + 1 : 1;
}

Duration StepCost::prompt_time(std::uint32_t decode_rows, std::uint32_t num_prompts,
                               std::uint32_t drafted_rows) const {
    const double beyond = stretch(decode_rows - drafted_rows, num_prompts) - 1,
                 first = cost_ms_[any];
    const double ms = beyond * plain_ms(decode_rows).value_or(0) - first;
    return from_ms(std::max(ms, worth_it * first));
}

Duration StepCost::rows_time(std::uint32_t num_rows, std::uint32_t position) const {
    if (num_rows == 0) return {};
    const double growth = cost_ms_[row_kilo_positions] / positions_unit,
                 chunk = cost_ms_[chunk_kilo_positions] / positions_unit * position;
    return from_ms(chunk + num_rows * (cost_ms_[rows] + growth * position) +
                   growth * num_rows * num_rows / 2);
}

Duration StepCost::expected(const StepShape& shape) const {
    const std::optional<double> plain = plain_ms(shape.decode_rows);
    if (shape.decode_rows == 0 || !plain) return {};
    double ms = *plain;
    const Terms terms = terms_of(shape);
    for (std::size_t i = 0; shape.prompt_rows > 0 && i < num_terms; ++i)
        ms += cost_ms_[i] * terms[i];
    return from_ms(ms);
}

// Solves chunk + n·first + n²·growth/2 = time for the number of rows n, and rounds n to the nearest
// whole number. Rounding down would waste much time where only one or two rows fit.
std::uint32_t StepCost::rows_within(Duration time, std::uint32_t position) const {
    const double chunk = cost_ms_[chunk_kilo_positions] / positions_unit * position,
                 ms = to_ms(time) - chunk, growth = cost_ms_[row_kilo_positions] / positions_unit,
                 first = cost_ms_[rows] + growth * position;
    if (ms <= 0) return 0;
    if (first <= 0) return prompt_rows_max_;

    const double fits = growth * ms < 1e-9 * first * first
                            ? ms / first
                            : (std::sqrt(first * first + 2 * growth * ms) - first) / growth;
    return static_cast<std::uint32_t>(std::min<double>(fits + 0.5, prompt_rows_max_));
}

}  // namespace moex
