#include "hub/net/health_watch.h"

namespace moex::net {
namespace {

constexpr Duration look_every = 250ms;

HealthSample sample_of(const SwarmCore& core) {
    const SwarmCounters counts = core.counters();
    const Coverage coverage = core.coverage();
    HealthSample sample{.local_fallback = core.options().local_fallback,
                        .units = coverage.units,
                        .covered = coverage.covered,
                        .returning = coverage.returning,
                        .rounds = counts.rounds,
                        .rounds_failed = counts.rounds_failed,
                        .rounds_open = counts.rounds_open,
                        .answers = counts.groups_answered + counts.calls_local};
    for (const WorkerView& worker : core.workers())
        sample.active_workers += could_serve(worker.state) ? 1 : 0;
    return sample;
}

}  // namespace

void HealthWatch::start() {
    asio::post(hub_.swarm_strand, [this] { tick(); });
}

void HealthWatch::stop() {
    asio::post(hub_.swarm_strand, [this] {
        stopped_ = true;
        timer_.cancel();
    });
}

void HealthWatch::look() {
    if (SwarmBackend* swarm = hub_.swarm)
        hub_.health.post(judge_.judge(now_steady(), sample_of(swarm->core())));
}

void HealthWatch::tick() {
    if (stopped_) return;
    look();
    timer_.expires_after(look_every);
    timer_.async_wait([this](NetError error) {
        if (!error) tick();
    });
}

Health current_health(const HubContext& hub) {
    if (hub.draining) return {.state = HealthState::draining, .reason = {}};
    if (!hub.swarm) return {.state = HealthState::loading, .reason = {}};
    Health health = hub.health.read();
    if (health.state == HealthState::ok && hub.registry.store_is_away()) {
        health.state = HealthState::degraded;
        health.still_answers = true;
        health.reason =
            hub.registry.store_is_wiped()
                ? "the store of --store was wiped, or another one is at its address; keys are "
                  "those "
                  "that were read last, for 15 minutes; restart the hubs to begin anew"
                : "the store of --store does not answer; keys are those that were read last, for "
                  "15 minutes, and nothing can be changed";
    }
    return health;
}

}  // namespace moex::net
