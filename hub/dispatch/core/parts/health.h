// Failures of workers, probes of ejected workers, and the silence of the whole swarm.
#pragma once

#include <vector>

#include "hub/dispatch/core/event_context.h"

namespace moex {

class SwarmHealth : public SwarmPart {
  public:
    using SwarmPart::SwarmPart;

    // Notes that a frame arrived from this worker.
    void on_sign_of_life(Worker& worker, TimePoint now);
    // Notes that the worker answered a request that was sent at `sent_at`. The answer may have been
    // late or no longer needed.
    void on_sign_of_work(EventContext& context, Worker& worker, TimePoint sent_at);
    void on_silence(EventContext& context, Worker& worker, std::string why);
    void add_failure(EventContext& context, Worker& worker, const char* why);
    // The worker's ejection is over: the hub sends it probes from now on.
    void on_ejection_over(EventContext& context, Worker& worker);
    void send_probes(EventContext& context, Round& round);

    // Called after an attempt timed out: decides whether the whole swarm is silent. It is silent if
    // three workers (or all workers, if there are fewer) have timed out, and no frame from any
    // worker has arrived since.
    void watch_for_silence(EventContext& context, const Attempt& late);
    // Returns true while the whole swarm is silent. During that time the local backend computes
    // everything.
    bool all_silent() const { return all_silent_; }
    void forget_silence() { all_silent_ = false; }

  private:
    bool may_eject_one_more() const;

    std::vector<WorkerId> probing_;  // half-open workers, which are sent probes
    // `unanswered_`: workers that timed out since the last frame from any worker. `all_silent_`:
    // there are enough of these workers to conclude that the network is down. The local backend
    // computes everything until a frame arrives.
    std::vector<WorkerId> unanswered_;
    TimePoint heard_at_{};
    bool all_silent_ = false;
};

}  // namespace moex
