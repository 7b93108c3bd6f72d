// What /health says, and when: from samples of the swarm's counters. The judge is pure;
// the board holds its last word for any thread.
//   ok         200: every expert has an answerer, and whoever is asked answers
//   degraded   503: no local fallback, and nobody answers what is asked: a round has been open
//              for two seconds without any answer, or the last round failed within 30 s
//   uncovered  503: an expert has no answerer
//   loading    503: the model is not there yet
//   draining   503: the hub stops
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "hub/base/clock.h"

namespace moex::net {

enum class HealthState { loading, ok, degraded, uncovered, draining };
const char* health_name(HealthState state);

struct Health {
    HealthState state = HealthState::loading;
    std::string reason;  // a sentence for `degraded` and `uncovered`
    std::uint32_t units = 0, covered = 0, active_workers = 0;
};

struct HealthSample {
    bool local_fallback = false;
    std::uint32_t units = 0, covered = 0, active_workers = 0;
    // of SwarmCounters; answers: groups by workers, calls by this machine
    std::uint64_t rounds = 0, rounds_failed = 0, rounds_open = 0, answers = 0;
};

class HealthJudge {
  public:
    // Call it with every sample, in order.
    Health judge(TimePoint now, const HealthSample& sample);

  private:
    void follow(TimePoint now, const HealthSample& sample);

    HealthSample last_;
    std::optional<TimePoint> silent_since_;  // rounds are open and no answer has come since
    std::optional<TimePoint> failed_at_;     // of the last round that ended, when it failed
};

class HealthBoard {
  public:
    void post(Health health) {
        const std::lock_guard lock(mutex_);
        health_ = std::move(health);
    }
    Health read() const {
        const std::lock_guard lock(mutex_);
        return health_;
    }

  private:
    mutable std::mutex mutex_;
    Health health_;
};

}  // namespace moex::net
