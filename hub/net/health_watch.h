// Looks at the swarm four times a second, on its strand, and
// posts what it finds to the hub's HealthBoard: a probe costs the swarm nothing.
#pragma once

#include "hub/net/hub_context.h"

namespace moex::net {

class HealthWatch {
  public:
    explicit HealthWatch(HubContext& hub) : hub_(hub), timer_(hub.swarm_strand) {}
    void start();  // any thread
    void stop();   // any thread
    // One look now. Swarm strand, or before it is served.
    void look();

  private:
    void tick();

    HubContext& hub_;
    asio::steady_timer timer_;
    HealthJudge judge_;
    bool stopped_ = false;
};

// The board's last word, unless the hub is loading or stops. Any thread.
Health current_health(const HubContext& hub);

}  // namespace moex::net
