// When something is asked of a second worker as well, and how much of that the swarm can bear.
// Events in, "after so long" and "yes, now" out: no worker, no frame, no clock.
//
// `delayed` waits as long as 96 of 100 attempts need, measured against what each was predicted to
// need, so that slow workers and large groups have a longer wait of their own.
// Source: Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013, hedged and tied requests.
#pragma once

#include <cstdint>
#include <optional>

#include "hub/base/clock.h"
#include "hub/dispatch/round/hedge_policy.h"
#include "hub/dispatch/round/latency_histogram.h"

namespace moex {

// What second attempts may cost: tokens that come with first attempts and with time.
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

    // `fixed` and `adaptive`: how many workers get each call at once; 1 otherwise.
    std::uint32_t attempts_at_once() const;

    // A group was sent that nobody else has.
    void on_first(TimePoint now);
    // A first attempt took `latency`, or at least that long when it was not needed any more.
    void on_end(Duration latency, Duration predicted);

    // `delayed`: how long after it was sent an attempt that is predicted to take `predicted` earns
    // a second; nullopt with other policies, and until enough is known.
    std::optional<Duration> second_after(Duration predicted) const;
    // Whether the budget has room for one more, and pays for `num_groups` of it.
    bool affords(TimePoint now);
    void pay(std::uint32_t num_groups) { saved_ -= num_groups; }

  private:
    void refill(TimePoint now);

    HedgePolicy policy_;
    ExtraBudget budget_;
    double saved_;
    TimePoint refilled_at_{};
    LatencyHistogram ratio_;    // of latency to prediction; 1 ms stands for 1
    LatencyHistogram latency_;  // as they are
};

}  // namespace moex
