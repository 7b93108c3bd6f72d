// An attempt is a group in flight to one worker, or a computation of the local backend. This part
// starts and ends attempts. It owns the hedge policy with its budget, and the latencies of the
// swarm.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "hub/dispatch/core/event_context.h"
#include "hub/dispatch/round/attempt_policy.h"

namespace moex {

// first: no other attempt has the group. hedge: another attempt has it, too. probe: the same, but
// only to measure the worker, so it is not cancelled when the other answer arrives.
enum class AttemptKind { first, hedge, probe };

// The reason why an attempt ended without an answer.
enum class AttemptFailure { error, bad_answer, busy, disconnect };

class SwarmAttempts : public SwarmPart {
  public:
    explicit SwarmAttempts(SwarmState& swarm);

    // ---- The following functions start attempts (swarm_attempts.cpp).
    void send_attempt(EventContext& context, Round& round, Worker& worker,
                      std::span<const std::uint32_t> slices, AttemptKind kind);
    // Sends the worker a copy of requests that another worker or the local backend computes: at
    // most `pairs_max` pairs, or one slice. Returns false if the worker holds none of them.
    bool send_probe(EventContext& context, Round& round, Worker& worker, std::uint32_t pairs_max);
    void compute_locally(EventContext& context, Round& round, std::vector<std::uint32_t> slices);
    // Charges the retries of failed groups to the retry budget, so that many errors do not cause as
    // many retries. A round waits while the budget is empty.
    void pay_for_retries(EventContext& context, Round& round);
    // Sends a second attempt for an attempt that takes longer than most, if the budget allows
    // it.
    void on_hedge_time(EventContext& context, Attempt& attempt);
    std::uint32_t attempts_at_once() const { return policy_.attempts_at_once(); }
    void set_hedge(const HedgePolicy& policy) { policy_.set(policy); }

    // ---- The following functions end attempts (swarm_attempt_ends.cpp).
    void on_attempt_late(EventContext& context, Attempt& attempt);
    // Ends one attempt without an answer. The caller dispatches the round again.
    void drop_attempt(EventContext& context, Attempt& attempt, AttemptFailure failure);
    void cancel_attempt(EventContext& context, Attempt& attempt);
    void accept_answer(EventContext& context, Attempt& attempt, std::vector<float> y, bool unsummed,
                       Evidence evidence);
    // Handles the local backend's result for the attempt: y [num_pairs, hidden_size], or an error.
    void on_local(EventContext& context, AttemptId id, Result<std::vector<float>> y);

    // ---- The following functions record and predict latencies.
    void learn_latency(TimePoint now, const Attempt& attempt, Worker& worker);
    const LatencyEstimates& latency() const { return latency_; }  // estimates over all workers

  private:
    // Returns how long the slices are predicted to wait until their experts are loaded into the
    // worker's memory. The call marks these experts as loaded in the hub's estimate of that memory.
    Duration begin_load(const Round& round, const Attempt& attempt, Worker& worker);
    bool is_loaded_elsewhere(const Round& round, const Attempt& attempt,
                             const Worker& worker) const;
    void plan_second(EventContext& context, const Round& round, const Attempt& attempt,
                     const Worker& worker);
    bool is_queued_behind_others(EventContext& context, Attempt& attempt);
    bool compute_beside(EventContext& context, Round& round, const Attempt& attempt,
                        std::span<const std::uint32_t> slices);
    void learn_unanswered(TimePoint now, const Attempt& attempt, Worker& worker);

    AttemptPolicy policy_;
    LatencyEstimates latency_;
    GroupDispatch group_;  // scratch of send_attempt()
};

}  // namespace moex
