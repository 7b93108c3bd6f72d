#include "hub/engine/micro_batches.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace moex {
namespace {

// A trial of another number of micro-batches has `trial_steps` steps, and their median duration
// decides. `long_steps` steps are enough if together they take `long_steps_ms`, as steps of long
// prompts do: a disturbance by other programs is short in comparison, and waiting for a third step
// would take long.
constexpr std::size_t trial_steps = 3, long_steps = 2;
constexpr double long_steps_ms = 500;
// Steps between trials: the number doubles after each trial that changed nothing. With the longest
// pause, trials that take twice as long as normal steps cost 0.4 %.
constexpr std::uint32_t pause_min = 48, pause_max = 768;
// A number that has become larger is compared with the one before it after so many steps.
constexpr std::uint32_t compare_again_after = 16;
// A larger number of micro-batches must save at least this share of the time.
constexpr double gain_min = 0.03;
// If an uncut step waits for experts during less than this share of its time, micro-batches have no
// waiting time to hide.
constexpr double waited_share_min = 0.1;
// If the duration of steps has changed by more than this factor, the last measurement is obsolete
// and a new trial begins early.
constexpr double drift_max = 1.3;

std::uint32_t rows_of(const StepShape& shape) { return shape.decode_rows + shape.prompt_rows; }

}  // namespace

void MicroBatches::Times::add(double value) {
    ms[next] = value;
    next = (next + 1) % most;
    count = std::min(count + 1, most);
}

// Returns the median; for an even number of values the lower of the two middle ones, since a
// disturbance makes a step longer, never shorter.
double MicroBatches::Times::median() const {
    auto sorted = ms;
    const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(count);
    std::sort(sorted.begin(), end);
    return sorted[(count - 1) / 2];
}

bool MicroBatches::Times::are_enough(std::size_t wanted) const {
    const auto end = ms.begin() + static_cast<std::ptrdiff_t>(count);
    return count >= wanted ||
           (count >= long_steps && std::accumulate(ms.begin(), end, 0.0) >= long_steps_ms);
}

MicroBatches::MicroBatches(std::uint32_t most, std::uint32_t fixed)
    : most_(std::clamp(most, 1u, most_ever)),
      fixed_(std::min(fixed, most_ever)) {}

std::size_t MicroBatches::kind_of(const StepShape& shape) {
    const auto log2_rows = static_cast<std::size_t>(std::bit_width(rows_of(shape)));
    return (shape.prompt_rows > 0 ? num_sizes : 0) + std::min(log2_rows, num_sizes - 1);
}

// Returns the number of micro-batches in use for steps of the kind `index`. Before this kind's
// first measurement, returns the number in use for half as many rows, or for twice as many.
std::uint32_t MicroBatches::number_of(std::size_t index) const {
    const std::size_t size = index % num_sizes;
    if (kinds_[index].times.count > 0) return kinds_[index].number;
    if (size > 0 && kinds_[index - 1].times.count > 0) return kinds_[index - 1].number;
    return size + 1 < num_sizes ? kinds_[index + 1].number : 1;
}

std::uint32_t MicroBatches::choose(const StepShape& shape) const {
    const std::size_t index = kind_of(shape);
    std::uint32_t wanted = fixed_;
    if (fixed_ == 0) wanted = kinds_[index].tried > 0 ? kinds_[index].tried : number_of(index);
    return std::clamp(wanted, 1u, std::max(1u, rows_of(shape)));
}

void MicroBatches::record(const StepShape& shape, std::uint32_t number, Duration took,
                          Duration waited) {
    if (fixed_ > 0 || most_ == 1 || rows_of(shape) < 2) return;
    Kind& kind = kinds_[kind_of(shape)];
    if (kind.times.count == 0) kind.number = number;
    const double ms = std::max(to_ms(took), 1e-6);
    if (number == 1) {
        constexpr double share_gain = 0.2;
        const double share = std::min(1.0, to_ms(waited) / ms), known = kind.waited_share;
        kind.waited_share = known < 0 ? share : known + share_gain * (share - known);
    }

    if (kind.tried > 0) {
        // this step was composed before the trial of `tried` began
        if (number != kind.tried) return;
        kind.trial.add(ms);
        if (kind.trial.are_enough(trial_steps)) end_trial(kind);
        return;
    }
    if (number != kind.number) return;
    kind.times.add(ms);
    ++kind.steps_since;
    if (wants_trial(kind)) begin_trial(kind, rows_of(shape));
}

bool MicroBatches::wants_trial(const Kind& kind) const {
    if (!kind.times.are_enough(Times::most)) return false;
    if (kind.number == 1 && kind.waited_share < waited_share_min) return false;
    if (kind.goes_on || kind.steps_since >= kind.pause) return true;
    if (kind.before > 0 && kind.steps_since >= compare_again_after) return true;

    const double median = kind.times.median();
    const bool drifted = median > drift_max * kind.settled_ms ||
                         kind.settled_ms > drift_max * median;
    return drifted && kind.steps_since >= pause_min;
}

// Returns the first number of micro-batches to try, minus one. The hub may need as long for each
// micro-batch as for an uncut step, because it reads all weights each time. Then this number of
// micro-batches fills the time during which an uncut step waits.
std::int32_t MicroBatches::first_reach(double waited_share) {
    constexpr double most = most_ever;
    const double number = std::clamp(1 / std::max(1 - waited_share, 1 / most), 2.0, most);
    return static_cast<std::int32_t>(std::lround(number)) - 1;
}

void MicroBatches::begin_trial(Kind& kind, std::uint32_t num_rows) const {
    const auto most = static_cast<std::int32_t>(std::min(most_, num_rows)),
               number = static_cast<std::int32_t>(kind.number);
    kind.trial = {};
    if (kind.before > 0 && !kind.goes_on) {
        kind.tried = kind.before;
        return;
    }
    if (kind.pause == 0 && number == 1) kind.reach = first_reach(kind.waited_share);
    if (number + kind.reach < 1) kind.reach = 1;
    if (number + kind.reach > most) kind.reach = number == 1 ? most - 1 : -1;
    kind.tried = static_cast<std::uint32_t>(number + kind.reach);
}

// Evaluates a trial. Three micro-batches may save too little over two, while four save enough. So
// after a number that was not slower, but not clearly faster either, the next number is tried.
void MicroBatches::end_trial(Kind& kind) const {
    const double used = kind.times.median(), tried = kind.trial.median();
    const std::int32_t onwards = kind.tried > kind.number ? 1 : -1;
    const bool is_better = onwards > 0 ? tried < (1 - gain_min) * used
                                       : (1 - gain_min) * tried < used;
    const bool has_beyond = kind.tried > 1 && kind.tried < most_;
    if (is_better) {
        if (onwards < 0)
            kind.before = 0;
        else if (kind.before == 0)
            kind.before = kind.number;
        kind.number = kind.tried;
        kind.times = kind.trial;
        kind.reach = onwards;
        kind.pause = pause_min;
        // the next trial follows when the duration of steps with this number is known
        kind.goes_on = has_beyond;
    } else if (kind.tried == kind.before) {
        kind.before = 0;
    } else if (tried < used && has_beyond) {
        kind.reach += onwards;
        kind.goes_on = true;
    } else {
        kind.reach = -onwards;
        kind.goes_on = false;
        kind.pause = std::clamp(2 * kind.pause, pause_min, pause_max);
    }
    kind.tried = 0;
    kind.settled_ms = kind.times.median();
    kind.steps_since = 0;
}

}  // namespace moex
