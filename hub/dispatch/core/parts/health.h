// Failures of workers, probes of ejected ones, and the silence of the whole swarm.
#pragma once

#include <vector>

#include "hub/dispatch/core/event_context.h"

namespace moex {

class SwarmHealth : public SwarmPart {
  public:
    using SwarmPart::SwarmPart;

    // A frame arrived from this worker.
    void on_sign_of_life(Worker& worker, TimePoint now);
    // It answered something that was sent at `sent_at`, in time or not, needed or not.
    void on_sign_of_work(EventContext& context, Worker& worker, TimePoint sent_at);
    void on_silence(EventContext& context, Worker& worker);
    void add_failure(EventContext& context, Worker& worker, const char* why);
    // The time of an ejection is over: the worker gets probes.
    void on_ejection_over(EventContext& context, Worker& worker);
    void send_probes(EventContext& context, Round& round);

    // Whether the whole swarm has gone silent: who was asked, all of them, and nobody was heard.
    void watch_for_silence(EventContext& context, const Attempt& late);
    // While this is true the local backend computes everything.
    bool all_silent() const { return all_silent_; }
    void forget_silence() { all_silent_ = false; }

  private:
    bool may_eject_one_more() const;
    bool send_probe(EventContext& context, Round& round, Worker& worker);

    std::vector<WorkerId> probing_;  // half-open
    // Nobody was heard of since all of these were asked; `all_silent_`: that is enough to think the
    // network gone, and the local backend computes everything until somebody is heard.
    std::vector<WorkerId> unanswered_;
    TimePoint heard_at_{};
    bool all_silent_ = false;
};

}  // namespace moex
