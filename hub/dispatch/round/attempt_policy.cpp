#include "hub/dispatch/round/attempt_policy.h"

#include <algorithm>

namespace moex {
namespace {
constexpr std::uint32_t samples_min = 64;
// hedges then use at most 4 % of attempts, so that retries have room within the budget of 5 %
constexpr double wait_quantile = 0.96;
// a hedge that is sent earlier is useless: the first answer is probably in flight already
constexpr Duration wait_min = 2ms;
}  // namespace

std::uint32_t AttemptPolicy::attempts_at_once() const {
    switch (policy_.mode) {
        case HedgeMode::fixed: return policy_.copies;
        case HedgeMode::adaptive:
            return latency_.total() >= samples_min && latency_.p50() > policy_.slow_p50
                       ? policy_.copies
                       : 1;
        case HedgeMode::off:
        case HedgeMode::delayed: break;
    }
    return 1;
}

void AttemptPolicy::refill(TimePoint now) {
    if (refilled_at_ != TimePoint{})
        saved_ += budget_.per_second * to_ms(now - refilled_at_) / 1000;
    refilled_at_ = now;
    saved_ = std::min(saved_, budget_.saved_max);
}

void AttemptPolicy::on_first(TimePoint now) {
    refill(now);
    saved_ = std::min(saved_ + budget_.per_first, budget_.saved_max);
}

void AttemptPolicy::on_end(Duration latency, Duration predicted) {
    latency_.record(latency);
    const double ratio = to_ms(latency) / std::max(1e-3, to_ms(predicted));
    ratio_.record(Duration(static_cast<std::int64_t>(1e6 * std::min(ratio, 1e4))));
}

std::optional<Duration> AttemptPolicy::second_after(Duration predicted) const {
    if (policy_.mode != HedgeMode::delayed || ratio_.total() < samples_min) return std::nullopt;
    const double ratio = to_ms(ratio_.quantile(wait_quantile));
    return std::max<Duration>(
        wait_min,
        Duration(static_cast<std::int64_t>(ratio * static_cast<double>(predicted.count()))));
}

bool AttemptPolicy::affords(TimePoint now) {
    refill(now);
    return saved_ >= 1;
}

}  // namespace moex
