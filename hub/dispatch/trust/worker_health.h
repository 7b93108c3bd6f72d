// The health of a worker, which decides whether it is sent requests: an explicit state machine with
// one table of transitions and no clock of its own.
//
// Failures in a row first make a healthy worker suspect and then eject it; each ejection is longer
// than the one before. After the ejection the worker is sent only probes, which are duplicates of
// requests that other workers compute anyway, until the worker has answered a probe. So a worker
// that is still broken delays no round. Source of the terms: outlier detection and half-open
// circuits in service proxies.
#pragma once

#include <cstdint>

#include "hub/base/clock.h"

namespace moex {

enum class Health : std::uint8_t {
    connecting,  // the worker was not sent WELCOME yet
    loading,     // the worker has no unit ready
    healthy,
    suspect,  // the worker's latest request failed; it is sent requests as before
    silent,   // the worker does not echo heartbeats
    ejected,  // the worker is sent no requests until the ejection is over
    probing,  // the worker is sent only duplicates of other workers' requests
    draining  // the worker is about to leave
};
const char* health_name(Health health);

enum class HealthEvent : std::uint8_t {
    welcome,
    loaded,     // the worker has a unit ready
    answer,     // the worker sent an answer of the right shape, even if another worker was faster
    failure,    // a timeout, an error, a bad answer, or too many BUSY in a row
    ejection,   // failures_max failures in a row were reached
    silence,    // the worker missed too many heartbeats
    echo,       // the worker echoed a heartbeat that was sent since the silence began
    time_over,  // the time of the ejection is over
    drain
};

// Returns the state that follows after `event`; the same state if the event changes nothing.
Health next_health(Health state, HealthEvent event);

struct HealthOptions {
    std::uint32_t failures_max = 3;  // failures in a row that eject a worker
    Duration eject_for = 5s;         // length of an ejection, multiplied by the number of ejections
    Duration eject_max = 5min;
    Duration forgive_after = 1min;  // time after an ejection that forgives one ejection
};

class WorkerHealth {
  public:
    Health state() const { return state_; }
    // Returns true if the worker may be sent requests that no other worker has.
    bool serves() const { return state_ == Health::healthy || state_ == Health::suspect; }
    // Returns true if the worker may be sent requests for units that no healthy worker holds.
    bool serves_in_need() const {
        return serves() || state_ == Health::ejected || state_ == Health::probing;
    }

    // on() and failed() return true if the state changed. failed() ejects the worker after enough
    // failures, unless `may_eject` is false.
    bool on(HealthEvent event, TimePoint now);
    bool failed(TimePoint now, bool may_eject, const HealthOptions& options);

    std::uint32_t failures_in_row() const { return failures_in_row_; }
    // Returns the number of ejections minus the forgiven ones.
    std::uint32_t ejections() const { return ejections_; }
    TimePoint since() const { return since_; }
    TimePoint ejected_until() const { return ejected_until_; }

  private:
    Health state_ = Health::connecting;
    std::uint32_t failures_in_row_ = 0, ejections_ = 0;
    TimePoint since_{}, ejected_until_{};
};

}  // namespace moex
