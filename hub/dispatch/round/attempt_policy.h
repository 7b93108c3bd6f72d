// Decides when a second attempt is sent to another worker beside a slow one (a hedge), and how many
// second attempts the swarm can bear. Events go in; durations and yes-or-no answers come out. The
// class knows no worker, no frame and no clock.
//
// With the policy `delayed`, a hedge is sent after the time within which 96 of 100 attempts end.
// That time is measured relative to each attempt's prediction, so that slow workers and large
// groups have a longer wait of their own. Source: Dean and Barroso, "The Tail at Scale", CACM
// 56(2), 2013, hedged and tied requests.
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

    // Returns the number of workers that each call is sent to at once. It exceeds 1 only with the
    // policies `fixed` and `adaptive`.
    std::uint32_t attempts_at_once() const;

    // Reports that a first attempt was sent: no other worker has its group.
    void on_first(TimePoint now);
    // Reports that a first attempt took `latency`, or at least that long if it was cancelled.
    void on_end(Duration latency, Duration predicted);

    // With the policy `delayed`: how long after its sending an attempt with the predicted latency
    // `predicted` gets a second attempt. nullopt with other policies, and while there are too few
    // samples.
    std::optional<Duration> second_after(Duration predicted) const;
    // affords() returns true if the budget has room for one more attempt. pay() charges
    // `num_groups` attempts to the budget.
    bool affords(TimePoint now);
    void pay(std::uint32_t num_groups) { saved_ -= num_groups; }

  private:
    void refill(TimePoint now);

    HedgePolicy policy_;
    ExtraBudget budget_;
    double saved_;
    TimePoint refilled_at_{};
    // latency divided by predicted latency; a ratio of 1 is recorded as 1 ms
    LatencyHistogram ratio_;
    LatencyHistogram latency_;  // absolute latencies of attempts
};

}  // namespace moex
