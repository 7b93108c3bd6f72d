// An event's context, the timers of the core, and the base class of the core's parts.
//
// Each event of SwarmCore makes one EventContext. A part that acts during the event appends its
// actions to the context. This header is private to the room.
#pragma once

#include <functional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "hub/dispatch/core/worker_pool.h"
#include "hub/dispatch/round/rounds_in_flight.h"
#include "hub/dispatch/swarm_types.h"

namespace moex {

struct SwarmState;

enum class TimerKind : std::uint8_t {
    hello,
    heartbeat,
    attempt,
    hedge,
    round,
    busy,
    health,
    place,
    units,
    hot_experts,
    drain,
    sign
};

// A timer is never cancelled. When it fires, the part that set it checks whether it still needs the
// timer.
struct SwarmTimer {
    TimePoint at;
    TimerKind kind;
    std::uint64_t id;  // id of a worker, round or attempt; 0: the whole swarm
    bool operator>(const SwarmTimer& other) const {
        return std::tie(at, id, kind) > std::tie(other.at, other.id, other.kind);
    }
};
using SwarmTimers = std::priority_queue<SwarmTimer, std::vector<SwarmTimer>, std::greater<>>;

struct EventContext {
    SwarmState& state;
    TimePoint now;
    std::vector<SwarmAction>& out;  // actions that the core returns for the event, in order

    void send(Worker& worker, WireFrame frame);
    void event(const Worker& worker, WorkerEvent::Kind kind, std::string detail);
    void set_timer(TimePoint at, TimerKind kind, std::uint64_t id);
};

// The base class of the core's parts holds the references that each part needs. A part owns its own
// fields and reaches another part through `swarm_`.
class SwarmPart {
  public:
    explicit SwarmPart(SwarmState& swarm);
    SwarmPart(const SwarmPart&) = delete;
    SwarmPart& operator=(const SwarmPart&) = delete;

  protected:
    SwarmState& swarm_;
    const SwarmOptions& options_;
    SwarmCounters& counts_;
    WorkerPool& pool_;
    RoundsInFlight& in_flight_;
};

}  // namespace moex
