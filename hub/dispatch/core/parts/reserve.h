// Workers in reserve: a hub that computes experts itself asks a worker only if the worker is
// expected to answer before the hub would be done (see reserve_rule.h). This part owns the rule,
// predicts the end of the local backend's queue, and sends the probes.
#pragma once

#include <optional>
#include <vector>

#include "hub/dispatch/core/event_context.h"

namespace moex {

class SwarmReserve : public SwarmPart {
  public:
    explicit SwarmReserve(SwarmState& swarm);

    // Returns true if workers are compared with the hub.
    bool is_on() const {
        return options_.use_workers == UseWorkers::automatic && options_.local_fallback;
    }

    // ---- The following functions predict the local backend's queue.
    // Returns how long the local backend needs for a call of `num_pairs` pairs, after the calls
    // that it was sent before. nullopt until it was measured.
    std::optional<Duration> local_time(std::uint32_t num_pairs, TimePoint now) const;
    void on_local_sent(const Round& round, Attempt& attempt, TimePoint now);
    void on_local_cancelled(AttemptId attempt, TimePoint now) { forget_local(attempt, now); }
    // Records the time of a local call that has ended. `attempt` is null if its round ended first.
    void on_local_end(AttemptId id, const Attempt* attempt, TimePoint now);
    // Records the time of a call that the local backend computed only to measure its own speed.
    void on_local_measured(std::uint32_t num_pairs, Duration took, TimePoint now);

    // ---- The following functions compare workers with the local backend.
    // Starts a pass over `num_workers` workers that could take the `num_pairs` open pairs. Returns
    // the pairs for which each worker is judged.
    std::uint32_t begin_pass(std::uint32_t num_pairs, std::size_t num_workers);
    // Returns true if the worker is expected to answer before the local backend, which would be
    // done after `here`.
    bool is_worth_asking(Worker& worker, std::uint32_t num_pairs, std::optional<Duration> here,
                         TimePoint now);
    // Returns the same for a worker that can begin after `wait`; does not change its record.
    bool is_worth_waiting(const Worker& worker, std::uint32_t num_pairs, Duration wait,
                          Duration here) const;

    // ---- The following functions record how long workers take.
    void on_sent(Worker& worker, Attempt& attempt, TimePoint now);
    void on_answer(Worker& worker, const Attempt& attempt, std::optional<RoundTimes> times,
                   TimePoint now);
    void on_late_answer(Worker& worker, std::uint32_t sequence_id,
                        const SequenceIds::Cancelled& request, TimePoint now);
    void on_cancelled(Worker& worker, const Attempt& attempt, TimePoint now);

    // ---- The following functions send probes, and measure the hub, while a round runs.
    void send_probes(EventContext& context, Round& round);
    void measure_local(EventContext& context, const Round& round);

  private:
    Duration queue_of(const Worker& worker, TimePoint now);
    void forget_local(AttemptId attempt, TimePoint now);

    ReserveRule rule_;
    std::uint32_t pairs_each_ = 1;  // the latest result of begin_pass()
    // Local attempts that have not ended, and when the backend is predicted to have computed them.
    struct LocalCall {
        AttemptId attempt = 0;
        bool is_cold = false;  // true: the call contains a unit that the backend never computed
    };
    std::vector<LocalCall> local_;
    // [num_units]: units that the backend has computed. It prepares the weights of a unit at the
    // first call, so the time of that call is not learned.
    std::vector<bool> was_computed_;
    TimePoint local_until_{}, local_ended_at_{};
    bool is_measuring_ = false;  // the backend has a call that only measures its time
};

}  // namespace moex
