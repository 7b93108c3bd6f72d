// Samples the swarm four times a second and at each event of a worker, on the swarm's strand, and
// posts the judgement to the hub's HealthBoard. A health probe reads the board and costs the swarm
// nothing.
#pragma once

#include "hub/net/hub_context.h"

namespace moex::net {

class HealthWatch {
  public:
    explicit HealthWatch(HubContext& hub) : hub_(hub), timer_(hub.swarm_strand) {}
    void start();  // any thread
    void stop();   // any thread
    // Takes one sample of the swarm now. Called on the swarm strand, or before the server runs.
    void look();

  private:
    void tick();

    HubContext& hub_;
    asio::steady_timer timer_;
    HealthJudge judge_;
    bool stopped_ = false;
};

// Returns the last judgement of the board, or `loading` or `draining` if the hub is loading or
// stopping. Any thread may call it.
Health current_health(const HubContext& hub);

}  // namespace moex::net
