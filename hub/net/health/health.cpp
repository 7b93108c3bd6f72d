#include "hub/net/health/health.h"

#include "protocol/text.h"

namespace moex::net {
namespace {

constexpr Duration silence_max = 2s;
// A failed round counts for this time. An older failure is ignored, because there may have been no
// request after it.
constexpr Duration failure_counts_within = 30s;

std::int64_t whole_seconds(Duration duration) {
    return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

}  // namespace

const char* health_name(HealthState state) {
    switch (state) {
        case HealthState::loading: return "loading";
        case HealthState::ok: return "ok";
        case HealthState::degraded: return "degraded";
        case HealthState::uncovered: return "uncovered";
        case HealthState::draining: return "draining";
    }
    return "unknown";
}

void HealthJudge::follow(TimePoint now, const HealthSample& sample) {
    const auto ended = [](const HealthSample& at) { return at.rounds - at.rounds_open; };
    const bool answered = sample.answers > last_.answers;
    const std::uint64_t failures = sample.rounds_failed - last_.rounds_failed;
    const bool some_succeeded = ended(sample) > ended(last_) + failures;

    // Forget a failure only after a round with an answer. Cancelled rounds also count as ended, but
    // do not show that the swarm answers.
    if (failures > 0)
        failed_at_ = now;
    else if (some_succeeded && answered)
        failed_at_.reset();

    if (sample.rounds_open == 0 || answered)
        silent_since_.reset();
    else if (!silent_since_)
        silent_since_ = now;
    last_ = sample;
}

Health HealthJudge::judge(TimePoint now, const HealthSample& sample) {
    follow(now, sample);
    Health health{.state = HealthState::ok,
                  .reason = {},
                  .units = sample.units,
                  .covered = sample.covered,
                  .returning = sample.returning,
                  .active_workers = sample.active_workers};

    if (sample.covered < sample.units) {
        health.state = HealthState::uncovered;
        health.reason = text(sample.units - sample.covered, " of ", sample.units,
                             " experts have no worker that could answer");
        if (sample.returning > 0)
            health.reason += text("; a lost worker that may return had ", sample.returning,
                                  " of these");
        return health;
    }
    if (sample.local_fallback) return health;

    if (silent_since_ && now - *silent_since_ >= silence_max) {
        health.state = HealthState::degraded;
        health.reason = text("no worker has answered for ", whole_seconds(now - *silent_since_),
                             " s while ", sample.rounds_open, " rounds wait");
    } else if (failed_at_ && now - *failed_at_ < failure_counts_within) {
        health.state = HealthState::degraded;
        health.reason = text("the last round failed ", whole_seconds(now - *failed_at_),
                             " s ago: no worker answered it");
    }
    return health;
}

}  // namespace moex::net
