// The life of a round: it opens, its open slices are sent to workers, it may wait for a worker, it
// ends.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "hub/dispatch/core/event_context.h"

namespace moex {

class SwarmRounds : public SwarmPart {
  public:
    using SwarmPart::SwarmPart;

    // ---- The following functions start and end rounds (swarm_rounds.cpp).
    RoundId open_round(EventContext& context, const ExpertBatch& batch, RoundRows rows);
    void finish_round(EventContext& context, Round& round);
    void fail_round(EventContext& context, Round& round, Error error);
    void close_round(EventContext& context, Round& round);
    void on_round_time(EventContext& context, Round& round);
    // Switches the open slices of the round to bf16 after an answer that f16 cannot represent. Such
    // an answer is no fault of the worker. Returns false when bf16 does not help.
    bool retry_in_bf16(Round& round, const Attempt& attempt) const;

    // ---- The following functions send slices, or let them wait for workers (swarm_dispatch.cpp).
    void dispatch(EventContext& context, Round& round);
    // Notes that a worker may have room now, so that serve_waiting() dispatches the waiting rounds.
    void free_capacity() { capacity_freed_ = true; }
    void serve_waiting(EventContext& context);

  private:
    TimePoint free_at(const Worker& worker, TimePoint now);
    bool has_worker_worth_waiting_for(const Round& round, const CallSlice& slice, TimePoint now,
                                      std::optional<Duration> here, std::uint32_t num_open);
    void split_waiting(EventContext& context, Round& round, std::vector<std::uint32_t>& open,
                       std::vector<std::uint32_t>& local);
    bool has_taker(const CallSlice& slice) const;
    void wait_for_workers(EventContext& context, Round& round, std::vector<std::uint32_t>& open);
    // fail_without_taker() and fail_without_holder() end the round and return true when waiting is
    // useless.
    bool fail_without_taker(EventContext& context, Round& round,
                            std::span<const std::uint32_t> open);
    bool fail_without_holder(EventContext& context, Round& round,
                             std::span<const std::uint32_t> open);
    void forgive(EventContext& context, Round& round, std::span<const std::uint32_t> open);
    // Returns the time at which a worker with an overdue answer for this slice may be sent the
    // slice once more.
    TimePoint overdue_retry_at(const CallSlice& slice, WorkerId worker);
    void make_room(EventContext& context, Worker& worker);

    bool capacity_freed_ = false;
};

}  // namespace moex
