// The inside of SwarmCore: its parts, each of which owns its fields, and the objects that they
// share. This header is private to the room.
//
//   part        owns                                        functions in
//   sessions    leaving connections, drain of the hub       swarm_hello, swarm_sessions
//   health      probes, silence of the whole swarm          swarm_health
//   placement   unit directory, hot experts, drained keys   swarm_placement, swarm_hot_experts,
//                                                           swarm_hints
//   checks      records of trust, pending checks            swarm_checks, swarm_witness
//   attempts    hedge policy, latencies                     swarm_attempts, swarm_attempt_ends
//   reserve     rule that compares workers with the hub     swarm_reserve
//   cover       scratch vectors of the router               swarm_cover
//   rounds      whether a waiting round may proceed         swarm_rounds, swarm_dispatch
//   spans       ranges of layers that workers compute     swarm_spans
//               whole
//   frames      nothing                                     swarm_protocol
//
// swarm_core dispatches events and timers to the parts, swarm_orders carries out the operator's
// orders, swarm_views answers queries, swarm_invariants checks the state in tests.
#pragma once

#include <memory>

#include "hub/dispatch/core/event_context.h"
#include "hub/dispatch/core/parts/attempts.h"
#include "hub/dispatch/core/parts/checks.h"
#include "hub/dispatch/core/parts/cover.h"
#include "hub/dispatch/core/parts/frames.h"
#include "hub/dispatch/core/parts/health.h"
#include "hub/dispatch/core/parts/placement.h"
#include "hub/dispatch/core/parts/reserve.h"
#include "hub/dispatch/core/parts/rounds.h"
#include "hub/dispatch/core/parts/sessions.h"
#include "hub/dispatch/core/parts/spans.h"
#include "hub/dispatch/round/latency_histogram.h"
#include "hub/dispatch/round/load_window.h"
#include "hub/dispatch/round/round_rows.h"

namespace moex {

// Times measured over the whole swarm, for the deadlines of hints and for views.
struct SwarmTimes {
    LatencyHistogram group_latency;
    LoadWindowMeter load_window;
    std::int32_t last_moe_index = 0;  // index of the newest round's layer among the MoE layers
};

struct SwarmState {
    explicit SwarmState(SwarmOptions given);

    void on_timer(EventContext& context, const SwarmTimer& timer);
    // The last step of each event: settles checks without a witness, closes drained connections,
    // then dispatches the rounds that wait.
    void end_event(EventContext& context);
    WorkerView view_of(const Worker& worker) const;

    // ---- objects that the parts share
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
    SwarmReserve reserve;
    SwarmCover cover;
    SwarmRounds rounds;
    SwarmSpans spans;
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
