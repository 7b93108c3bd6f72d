// Whether a worker is asked: an explicit machine, one table of transitions, no clock of its own.
//
// Failures in a row make a healthy worker suspect and then eject it, for longer each time. When
// that time is over it is asked for duplicates alone, of what others compute anyway, until it has
// answered one: a worker that is still broken costs nobody a wait.
// Source of the terms: outlier detection and half-open circuits as service proxies have them.
#pragma once

#include <cstdint>

#include "hub/base/clock.h"

namespace moex {

enum class Health : std::uint8_t {
    connecting,  // not welcomed yet
    loading,     // holds nothing that it could be asked for
    healthy,
    suspect,  // failed last; asked as before
    silent,   // its heartbeats do not come back
    ejected,  // asked for nothing until its time is over
    probing,  // asked for duplicates
    draining  // on its way out
};
const char* health_name(Health health);

enum class HealthEvent : std::uint8_t {
    welcome,
    loaded,     // it has something to be asked for
    answer,     // of the right shape, whoever else was faster
    failure,    // a timeout, an error, a bad answer, BUSY once too often
    ejection,   // by the failure that was one too many
    silence,    // heartbeats missed
    echo,       // a heartbeat came back that was sent since
    time_over,  // of its ejection
    drain
};

// Where `event` leads from `state`; the same state where it changes nothing.
Health next_health(Health state, HealthEvent event);

struct HealthOptions {
    std::uint32_t failures_max = 3;  // in a row
    Duration eject_for = 5s;         // times the number of ejections
    Duration eject_max = 5min;
    Duration forgive_after = 1min;  // of health: one ejection less
};

class WorkerHealth {
  public:
    Health state() const { return state_; }
    // May be given work that nobody else does.
    bool serves() const { return state_ == Health::healthy || state_ == Health::suspect; }
    // May be given some where nobody serves who could do it.
    bool serves_in_need() const {
        return serves() || state_ == Health::ejected || state_ == Health::probing;
    }

    // True when the state is another one now. `failed()` ejects unless `may_eject` is false.
    bool on(HealthEvent event, TimePoint now);
    bool failed(TimePoint now, bool may_eject, const HealthOptions& options);

    std::uint32_t failures_in_row() const { return failures_in_row_; }
    // How often it was ejected, less what was forgiven since.
    std::uint32_t ejections() const { return ejections_; }
    TimePoint since() const { return since_; }
    TimePoint ejected_until() const { return ejected_until_; }

  private:
    Health state_ = Health::connecting;
    std::uint32_t failures_in_row_ = 0, ejections_ = 0;
    TimePoint since_{}, ejected_until_{};
};

}  // namespace moex
