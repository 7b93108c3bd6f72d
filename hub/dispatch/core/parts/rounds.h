// The life of a round: it opens, its open slices go to workers, it waits, it ends.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "hub/dispatch/core/event_context.h"

namespace moex {

class SwarmRounds : public SwarmPart {
  public:
    using SwarmPart::SwarmPart;

    // ---- swarm_rounds.cpp: the start and the ends
    RoundId open_round(EventContext& context, const ExpertBatch& batch, RoundRows rows);
    void finish_round(EventContext& context, Round& round);
    void fail_round(EventContext& context, Round& round, Error error);
    void close_round(EventContext& context, Round& round);
    void on_round_time(EventContext& context, Round& round);
    // An answer that f16 cannot carry is no fault of who computed it: what is still
    // open of the round goes on in bf16. False when that does not help.
    bool retry_in_bf16(Round& round, const Attempt& attempt) const;

    // ---- swarm_dispatch.cpp: who computes what, and what waits
    void dispatch(EventContext& context, Round& round);
    // A worker may have room now: serve_waiting() looks again.
    void free_capacity() { capacity_freed_ = true; }
    void serve_waiting(EventContext& context);

  private:
    TimePoint free_at(const Worker& worker, TimePoint now);
    bool has_worker_worth_waiting_for(const Round& round, const CallSlice& slice, TimePoint now,
                                      std::optional<Duration> here);
    void keep_what_may_wait(EventContext& context, Round& round, std::vector<std::uint32_t>& open,
                            std::vector<std::uint32_t>& local);
    bool has_taker(const CallSlice& slice) const;
    void wait_for_workers(EventContext& context, Round& round, std::vector<std::uint32_t>& open);
    // These two end the round and say true when there is no use in waiting.
    bool fail_what_nobody_takes(EventContext& context, Round& round,
                                std::span<const std::uint32_t> open);
    bool fail_what_nobody_holds(EventContext& context, Round& round,
                                std::span<const std::uint32_t> open);
    void forgive(EventContext& context, Round& round, std::span<const std::uint32_t> open);
    // When who has not answered this slice in time may be asked for it once more.
    TimePoint overdue_retry_at(const CallSlice& slice, WorkerId worker);
    void make_room(EventContext& context, Worker& worker);

    bool capacity_freed_ = false;
};

}  // namespace moex
