#include "hub/engine/draft_budget.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace moex {
namespace {

// Weight of a new plain step in the mean, once there are more than 1 / plain_gain of them.
constexpr double plain_gain = 0.1;
// Factor by which the weight of older steps with drafts shrinks with each new one.
constexpr double memory = 0.95;
// Drafted rows are used only if they raise the expected speed by more than this share, because the
// learned times have errors of about this size.
constexpr double advantage_min = 0.02;
// Before a drafted row was ever measured, it is expected to cost this share of a plain step.
constexpr double first_share = 0.25;
// A single measurement counts as at most this many times the expected duration.
constexpr double surprise_max = 2;
// So many steps in a row that took longer, or shorter, than expected by more than this factor are
// no disturbance: what was learned holds no longer.
constexpr std::int32_t surprises_max = 3;
constexpr double surprise_min = 4;
// Plain steps that are measured before the first draft.
constexpr std::uint32_t plain_steps_min = 3;
// Steps between trials: the number doubles after each trial that changed nothing.
constexpr std::uint32_t pause_min = 16, pause_max = 1024;
// Even if drafts pay, a plain step follows after this many steps.
constexpr std::uint32_t pause_max_paid = 128;
// After this number of steps with drafts, what is known serves others as a first estimate.
constexpr std::uint32_t lent_steps_min = 8;
// Drafted rows for each four sequences in a trial, and the least gain a sequence that is worth one.
constexpr std::uint32_t trial_rows_min = 2;
constexpr double trial_gain_min = 0.05;

}  // namespace

double DraftBudget::Kind::row_ms() const {
    return num_drafted > 0 ? std::max(0.0, extra_ms / rows) : 0;
}

// Gives a kind of steps that was not seen yet what is known of a neighbour. Its own steps soon
// count more.
void DraftBudget::begin(std::size_t kind) {
    Kind& own = kinds_[kind];
    if (std::exchange(own.has_begun, true)) return;
    for (const std::size_t other : {kind + 1, kind - 1}) {
        if (other >= num_kinds || kinds_[other].num_drafted < lent_steps_min) continue;
        const Kind& known = kinds_[other];
        own = {.plain_ms = known.plain_ms,
               .rows = (1 - memory) * known.rows,
               .extra_ms = (1 - memory) * known.extra_ms,
               .num_plain = plain_steps_min,
               .num_drafted = known.num_drafted,
               .pause = pause_min,
               .has_begun = true,
               .has_paid = known.has_paid};
        return;
    }
}

// Forgets everything: the line or the machine is another one. `latest`: of the latest steps.
void DraftBudget::forget(Kind& latest) {
    kinds_.fill({});
    latest.has_begun = true;
}

std::size_t DraftBudget::kind_of(std::uint32_t sequences) {
    return std::min<std::size_t>(std::bit_width(sequences), num_kinds - 1);
}

std::uint32_t DraftBudget::best_of(const Kind& kind, std::uint32_t sequences,
                                   std::span<const double> gains) {
    const double plain = kind.plain_ms,
                 row = kind.num_drafted > 0 ? kind.row_ms() : first_share * plain / sequences;
    double tokens = sequences, best_rate = (1 + advantage_min) * tokens / plain;
    std::uint32_t best = 0;
    for (std::uint32_t k = 1; k <= gains.size(); ++k) {
        tokens += gains[k - 1];
        const double rate = tokens / (plain + k * row);
        if (rate <= best_rate) continue;
        best_rate = rate;
        best = k;
    }
    return best;
}

std::uint32_t DraftBudget::choose(std::uint32_t sequences, std::span<const double> gains) {
    Kind& kind = kinds_[kind_of(sequences)];
    begin(kind_of(sequences));
    if (gains.empty() || kind.num_plain < plain_steps_min || kind.plain_ms <= 0) return 0;

    const std::uint32_t best = best_of(kind, sequences, gains);
    if (++kind.steps_since <= kind.pause && kind.pause > 0) return best;

    const bool pays = best > 0;
    const auto rows = std::min(static_cast<std::uint32_t>(gains.size()),
                               std::max(trial_rows_min, sequences / 4));
    const double gain = std::accumulate(gains.begin(), gains.begin() + rows, 0.0);
    if (!pays && gain < trial_gain_min * sequences) return best;

    const std::uint32_t most = pays ? pause_max_paid : pause_max;
    kind.pause = pays == kind.has_paid ? std::clamp(2 * kind.pause, pause_min, most) : pause_min;
    kind.has_paid = pays;
    kind.steps_since = 0;
    return pays && kind.num_drafted > 0 ? 0 : std::max(best, rows);
}

void DraftBudget::try_again(std::uint32_t sequences) {
    Kind& kind = kinds_[kind_of(sequences)];
    kind.steps_since = kind.pause;
}

void DraftBudget::record(std::uint32_t sequences, std::uint32_t drafted_rows, Duration took) {
    if (sequences == 0) return;
    Kind& kind = kinds_[kind_of(sequences)];
    double ms = std::max(to_ms(took), 1e-6);
    if (const double usual = expected_ms(sequences, drafted_rows);
        usual > 0 && (drafted_rows == 0 || kind.num_drafted > 0)) {
        const int way = ms >= usual * surprise_min ? 1 : ms <= usual / surprise_min ? -1 : 0;
        kind.surprises = way * kind.surprises > 0 ? kind.surprises + way : way;
        if (std::abs(kind.surprises) < surprises_max)
            ms = std::clamp(ms, usual / surprise_max, usual * surprise_max);
        else
            forget(kind);
    }

    if (drafted_rows == 0) {
        ++kind.num_plain;
        kind.plain_ms += (ms - kind.plain_ms) * std::max(plain_gain, 1.0 / kind.num_plain);
        return;
    }
    if (kind.num_plain == 0) return;
    ++kind.num_drafted;
    kind.rows = memory * kind.rows + drafted_rows;
    kind.extra_ms = memory * kind.extra_ms + (ms - kind.plain_ms);
}

double DraftBudget::expected_ms(std::uint32_t sequences, std::uint32_t drafted_rows) const {
    const Kind& kind = kinds_[kind_of(sequences)];
    return kind.num_plain > 0 ? kind.plain_ms + drafted_rows * kind.row_ms() : 0;
}

}  // namespace moex
