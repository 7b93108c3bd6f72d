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
// The same of a plain step after steps with drafts, because the last ones may be long ago.
constexpr double late_plain_gain = 0.4;
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
// The same if drafts pay: even then a plain step follows.
constexpr std::uint32_t pause_min_paid = 4, pause_max_paid = 128;
// Means of two kinds give a slope if their numbers of sequences differ by at least this factor.
constexpr double apart_min = 1.2;
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
               .plain_sequences = known.plain_sequences,
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

// Between the means of this kind and of a neighbour, durations are taken as linear: of the one on
// the side of `sequences`, or else of the other one. Without a neighbour, the slope is half of that
// of a duration proportional to the number of sequences.
double DraftBudget::plain_ms(std::uint32_t sequences) const {
    const std::size_t at = kind_of(sequences);
    const Kind& own = kinds_[at];
    const double steepest = own.plain_ms / own.plain_sequences;
    double slope = steepest / 2;
    const bool is_above = sequences > own.plain_sequences;
    for (const std::size_t other : {is_above ? at + 1 : at - 1, is_above ? at - 1 : at + 1}) {
        if (other >= num_kinds || kinds_[other].num_plain < plain_steps_min) continue;
        const Kind& known = kinds_[other];
        const double least = std::min(own.plain_sequences, known.plain_sequences),
                     most = std::max(own.plain_sequences, known.plain_sequences);
        if (most < apart_min * least) continue;
        slope = std::clamp(
            (known.plain_ms - own.plain_ms) / (known.plain_sequences - own.plain_sequences), 0.0,
            steepest);
        break;
    }
    return own.plain_ms + slope * (sequences - own.plain_sequences);
}

std::uint32_t DraftBudget::best_of(std::uint32_t sequences, std::span<const double> gains) const {
    const Kind& kind = kinds_[kind_of(sequences)];
    const double plain = plain_ms(sequences),
                 row = kind.num_drafted > 0 ? kind.row_ms() : first_share * plain / sequences;
    double tokens = sequences, best_rate = (1 + advantage_min) * tokens / plain;
    // The first drafted rows show what about one row a sequence costs. More might cost much.
    const std::size_t most = kind.num_drafted > 0 ? gains.size()
                                                  : std::max(trial_rows_min, sequences);
    std::uint32_t best = 0;
    for (std::uint32_t k = 1; k <= std::min(gains.size(), most); ++k) {
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

    const std::uint32_t best = best_of(sequences, gains);
    if (++kind.steps_since <= kind.pause && kind.pause > 0) return best;

    const bool pays = best > 0;
    const auto rows = std::min(static_cast<std::uint32_t>(gains.size()),
                               std::max(trial_rows_min, sequences / 4));
    const double gain = std::accumulate(gains.begin(), gains.begin() + rows, 0.0);
    if (!pays && gain < trial_gain_min * sequences) return best;

    const std::uint32_t least = pays ? pause_min_paid : pause_min,
                        most = pays ? pause_max_paid : pause_max;
    kind.pause = pays == kind.has_paid ? std::clamp(2 * kind.pause, least, most) : least;
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

    const bool was_drafted = std::exchange(kind.was_drafted, drafted_rows > 0);
    if (drafted_rows == 0) {
        ++kind.num_plain;
        const double gain = std::max(was_drafted ? late_plain_gain : plain_gain,
                                     1.0 / kind.num_plain);
        kind.plain_ms += (ms - kind.plain_ms) * gain;
        kind.plain_sequences += (sequences - kind.plain_sequences) * gain;
        return;
    }
    if (kind.num_plain == 0) return;
    ++kind.num_drafted;
    kind.rows = memory * kind.rows + drafted_rows;
    kind.extra_ms = memory * kind.extra_ms + (ms - plain_ms(sequences));
}

double DraftBudget::expected_ms(std::uint32_t sequences, std::uint32_t drafted_rows) const {
    const Kind& kind = kinds_[kind_of(sequences)];
    return kind.num_plain > 0 ? plain_ms(sequences) + drafted_rows * kind.row_ms() : 0;
}

}  // namespace moex
