// Decides when a slow attempt earns a second one at another worker, and how many second attempts
// the swarm can bear. Events go in; durations and yes-or-no answers come out. It knows no worker,
// no frame and no clock.
//
// `delayed` waits for the time within which 96 of 100 attempts end. That time is measured relative
// to each attempt's prediction, so that slow workers and large groups have a longer wait of their
// own. Source: Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013, hedged and tied requests.
#pragma once

#include <cstdint>
#include <optional>

#include "hub/base/clock.h"
#include "hub/dispatch/round/hedge_policy.h"
#include "hub/dispatch/round/latency_histogram.h"

namespace moex {

// The budget for second attempts: a token bucket, filled by first attempts and by time.
struct ExtraBudget {
    double per_first = 0.05, per_second = 5, saved_max = 10;
};

class AttemptPolicy {
  public:
    explicit AttemptPolicy(HedgePolicy policy, ExtraBudget budget = {})
        : policy_(policy),
          budget_(budget),
          saved_(budget.saved_max) {}
    void set(const HedgePolicy& policy) { policy_ = policy; }

    // `fixed` and `adaptive`: the number of workers that each call is sent to at once; 1 otherwise.
    std::uint32_t attempts_at_once() const;

    // Reports a first attempt: no other worker has this group.
    void on_first(TimePoint now);
    // Reports that a first attempt took `latency`, or at least that long if it was cancelled.
    void on_end(Duration latency, Duration predicted);

    // `delayed`: how long after it is sent an attempt with the prediction `predicted` earns a
    // second one. nullopt with other policies, and while there are too few samples.
    std::optional<Duration> second_after(Duration predicted) const;
    // affords(): returns true if the budget has room for one more attempt. pay(): charges
    // `num_groups` attempts.
    bool affords(TimePoint now);
    void pay(std::uint32_t num_groups) { saved_ -= num_groups; }

  private:
    void refill(TimePoint now);

    HedgePolicy policy_;
    ExtraBudget budget_;
    double saved_;
    TimePoint refilled_at_{};
    LatencyHistogram ratio_;    // latency / prediction; 1 ms means the ratio 1
    LatencyHistogram latency_;  // in absolute time
};

}  // namespace moex
