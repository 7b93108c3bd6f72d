// The inside of SwarmCore: its parts, each of which owns its fields, and what they share. Private
// to this room.
//
//   part        owns                                        functions in
//   sessions    connections that leave, drain               swarm_hello, swarm_sessions
//   health      probes, silence of the swarm                swarm_health
//   placement   unit directory, hot experts, drained keys   swarm_placement, swarm_hot_experts,
//                                                           swarm_hints
//   checks      records of trust, pending checks            swarm_checks, swarm_witness
//   attempts    hedge policy, latencies                     swarm_attempts, swarm_attempt_ends
//   cover       the router's scratch                        swarm_cover
//   rounds      whether a waiting round may go on           swarm_rounds, swarm_dispatch
//   frames      nothing                                     swarm_protocol
#pragma once

#include <memory>

#include "hub/dispatch/core/event_context.h"
#include "hub/dispatch/core/parts/attempts.h"
#include "hub/dispatch/core/parts/checks.h"
#include "hub/dispatch/core/parts/cover.h"
#include "hub/dispatch/core/parts/frames.h"
#include "hub/dispatch/core/parts/health.h"
#include "hub/dispatch/core/parts/placement.h"
#include "hub/dispatch/core/parts/rounds.h"
#include "hub/dispatch/core/parts/sessions.h"
#include "hub/dispatch/round/latency_histogram.h"
#include "hub/dispatch/round/load_window.h"
#include "hub/dispatch/round/round_rows.h"

namespace moex {

// Times of the whole swarm, for hints and for views.
struct SwarmTimes {
    LatencyHistogram group_latency;
    LoadWindowMeter load_window;
    std::int32_t last_moe_index = 0;  // of the newest round's layer
};

struct SwarmState {
    explicit SwarmState(SwarmOptions given);

    void on_timer(EventContext& context, const SwarmTimer& timer);
    // The last step of each event: settles checks, closes
    // what has drained, then serves the rounds that wait.
    void end_event(EventContext& context);
    WorkerView view_of(const Worker& worker) const;

    // ---- shared by the parts
    SwarmOptions options;
    SwarmCounters counts;
    WorkerPool pool;
    RoundsInFlight in_flight;
    SwarmTimers timers;
    SwarmTimes times;
    std::shared_ptr<AnswerMemory> answer_memory;
    RowReader row_reader;

    // ---- the parts
    SwarmPlacement placement;
    SwarmSessions sessions;
    SwarmHealth health;
    SwarmChecks checks;
    SwarmAttempts attempts;
    SwarmCover cover;
    SwarmRounds rounds;
    SwarmFrames frames;
};

inline SwarmPart::SwarmPart(SwarmState& swarm)
    : swarm_(swarm),
      options_(swarm.options),
      counts_(swarm.counts),
      pool_(swarm.pool),
      in_flight_(swarm.in_flight) {}

inline void EventContext::set_timer(TimePoint at, TimerKind kind, std::uint64_t id) {
    state.timers.push({at, kind, id});
}

}  // namespace moex
