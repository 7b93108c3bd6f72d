#include "hub/dispatch/trust/worker_health.h"

#include <algorithm>
#include <array>

namespace moex {
namespace {

struct Transition {
    Health from;
    HealthEvent event;
    Health to;
};

// A (state, event) pair that is not listed leaves the state unchanged. DRAIN leads from every state
// to draining (see next_health).
constexpr std::array transitions{
    Transition{Health::connecting, HealthEvent::welcome, Health::loading},
    Transition{Health::loading, HealthEvent::loaded, Health::healthy},
    Transition{Health::loading, HealthEvent::silence, Health::silent},

    Transition{Health::healthy, HealthEvent::failure, Health::suspect},
    Transition{Health::healthy, HealthEvent::ejection, Health::ejected},
    Transition{Health::healthy, HealthEvent::silence, Health::silent},

    Transition{Health::suspect, HealthEvent::answer, Health::healthy},
    Transition{Health::suspect, HealthEvent::ejection, Health::ejected},
    Transition{Health::suspect, HealthEvent::silence, Health::silent},

    // the connection is back, but an answer must still show that the worker computes
    Transition{Health::silent, HealthEvent::echo, Health::suspect},

    Transition{Health::ejected, HealthEvent::time_over, Health::probing},
    Transition{Health::ejected, HealthEvent::silence, Health::silent},

    Transition{Health::probing, HealthEvent::answer, Health::healthy},
    Transition{Health::probing, HealthEvent::ejection, Health::ejected},
    Transition{Health::probing, HealthEvent::silence, Health::silent},
};

}  // namespace

const char* health_name(Health health) {
    switch (health) {
        case Health::connecting: return "connecting";
        case Health::loading: return "loading";
        case Health::healthy: return "healthy";
        case Health::suspect: return "suspect";
        case Health::silent: return "silent";
        case Health::ejected: return "ejected";
        case Health::probing: return "probing";
        case Health::draining: return "draining";
    }
    return "unknown";
}

Health next_health(Health state, HealthEvent event) {
    if (event == HealthEvent::drain) return Health::draining;
    const auto found = std::find_if(
        transitions.begin(), transitions.end(),
        [&](const Transition& row) { return row.from == state && row.event == event; });
    return found == transitions.end() ? state : found->to;
}

bool WorkerHealth::on(HealthEvent event, TimePoint now) {
    if (event == HealthEvent::answer || event == HealthEvent::echo) failures_in_row_ = 0;

    const Health next = next_health(state_, event);
    if (next == state_) return false;
    state_ = next;
    since_ = now;
    return true;
}

bool WorkerHealth::failed(TimePoint now, bool may_eject, const HealthOptions& options) {
    ++failures_in_row_;
    // for a half-open (probing) worker one failure is enough
    const bool enough = failures_in_row_ >= options.failures_max || state_ == Health::probing;
    if (!enough || !may_eject) return on(HealthEvent::failure, now);

    const bool was_asked = serves() || state_ == Health::probing;
    if (!was_asked) return false;

    const auto forgiven = static_cast<std::uint32_t>(
        state_ == Health::probing
            ? 0
            : std::max<std::int64_t>(0, (now - ejected_until_) / options.forgive_after));
    ejections_ -= std::min(ejections_, forgiven);
    ++ejections_;
    ejected_until_ = now + std::min<Duration>(options.eject_for * ejections_, options.eject_max);
    return on(HealthEvent::ejection, now);
}

}  // namespace moex
