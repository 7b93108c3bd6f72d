// The state that /health reports, judged from samples of the swarm's counters. The judge is pure,
// and the board holds the last judgement for any thread.
//   ok         200: a worker or this machine can compute every expert, and calls are answered
//   degraded   503: no local fallback, and calls are not answered: a round has been open for two
//              seconds without any answer, or the last round failed within 30 s
//              200: the store that hubs share is away, and requests are answered all the same: a
//              balancer must not take every hub out
//   uncovered  503: no worker and no fallback can compute some expert
//   loading    503: the model is not loaded yet
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
    bool still_answers = false;  // of `degraded`: 200
    std::string reason;          // for `degraded` and `uncovered`: a sentence that says why
    // covered: experts for which a worker or this machine could answer now. returning: other
    // experts that a lost worker had, which may return within seconds.
    std::uint32_t units = 0, covered = 0, returning = 0, active_workers = 0;
};

struct HealthSample {
    bool local_fallback = false;
    std::uint32_t units = 0, covered = 0, returning = 0, active_workers = 0;
    // Counts of SwarmCounters; `answers` has the groups of workers and the calls of this machine.
    std::uint64_t rounds = 0, rounds_failed = 0, rounds_open = 0, answers = 0;
};

class HealthJudge {
  public:
    // Judges one sample of the swarm's counters. The caller passes every sample, in order.
    Health judge(TimePoint now, const HealthSample& sample);

  private:
    void follow(TimePoint now, const HealthSample& sample);

    HealthSample last_;
    std::optional<TimePoint> silent_since_;  // time since which rounds are open without any answer
    // Time of the failure, if the last round that ended has failed.
    std::optional<TimePoint> failed_at_;
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
