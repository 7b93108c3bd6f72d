// Once a second, on the swarm's strand: the speed shown on the status
// page, and what the registry should remember of calls and workers.
#pragma once

#include <deque>
#include <map>

#include "hub/net/hub_context.h"

namespace moex::net {

class Housekeeping {
  public:
    explicit Housekeeping(HubContext& hub) : hub_(hub), timer_(hub.swarm_strand) {}
    void start();  // any thread
    void stop();   // any thread
    // Adds what happened since the last visit to the registry. Swarm strand.
    void record();

  private:
    struct Seen {
        std::uint64_t pairs_answered = 0, bytes_received = 0, bad_answers = 0;
    };
    void tick();

    HubContext& hub_;
    asio::steady_timer timer_;
    bool stopped_ = false;
    std::uint32_t ticks_ = 0;
    // (when, generated_tokens), the last few seconds
    std::deque<std::pair<TimePoint, std::uint64_t>> tokens_;
    std::map<std::string, std::uint64_t> counters_;  // as recorded last
    std::map<WorkerId, Seen> workers_;
};

}  // namespace moex::net
