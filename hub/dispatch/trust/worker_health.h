// The health of a worker, which decides whether it is sent requests: an explicit state machine with
// one table of transitions and no clock of its own.
//
// Failures in a row make a healthy worker suspect and then eject it, each time for longer. After
// the ejection the worker is sent only probes, which are duplicates of requests that other workers
// compute anyway, until it has answered one. So a worker that is still broken delays no round.
// Source of the terms: outlier detection and half-open circuits in service proxies.
#pragma once

#include <cstdint>

#include "hub/base/clock.h"

namespace moex {

enum class Health : std::uint8_t {
    connecting,  // not welcomed yet
    loading,     // has no unit ready
    healthy,
    suspect,  // its last request failed; used as before
    silent,   // its heartbeats do not return
    ejected,  // used for nothing until its time is over
    probing,  // sent duplicates only
    draining  // leaving
};
const char* health_name(Health health);

enum class HealthEvent : std::uint8_t {
    welcome,
    loaded,     // it has a unit ready
    answer,     // an answer of the right shape, even if another worker was faster
    failure,    // a timeout, an error, a bad answer, or too many BUSY in a row
    ejection,   // failures_max was reached
    silence,    // heartbeats missed
    echo,       // the echo of a heartbeat that was sent since the silence began
    time_over,  // the ejection is over
    drain
};

// The state after `event`; the same state if the event changes nothing.
Health next_health(Health state, HealthEvent event);

struct HealthOptions {
    std::uint32_t failures_max = 3;  // in a row
    Duration eject_for = 5s;         // times the number of ejections
    Duration eject_max = 5min;
    Duration forgive_after = 1min;  // time in health that forgives one ejection
};

class WorkerHealth {
  public:
    Health state() const { return state_; }
    // May be sent requests that no other worker has.
    bool serves() const { return state_ == Health::healthy || state_ == Health::suspect; }
    // May be sent requests where no healthy worker holds the unit.
    bool serves_in_need() const {
        return serves() || state_ == Health::ejected || state_ == Health::probing;
    }

    // Returns true if the state changed. failed() ejects unless `may_eject` is false.
    bool on(HealthEvent event, TimePoint now);
    bool failed(TimePoint now, bool may_eject, const HealthOptions& options);

    std::uint32_t failures_in_row() const { return failures_in_row_; }
    // The number of ejections minus those that were forgiven.
    std::uint32_t ejections() const { return ejections_; }
    TimePoint since() const { return since_; }
    TimePoint ejected_until() const { return ejected_until_; }

  private:
    Health state_ = Health::connecting;
    std::uint32_t failures_in_row_ = 0, ejections_ = 0;
    TimePoint since_{}, ejected_until_{};
};

}  // namespace moex
