// The data that dispatch receives and returns: options, actions, views and counters. The types are
// plain data; SwarmCore in swarm_core.h uses them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hub/base/clock.h"
#include "hub/dispatch/ids.h"
#include "hub/dispatch/placement/hot_experts.h"
#include "hub/dispatch/placement/placement.h"
#include "hub/dispatch/round/hedge_policy.h"
#include "hub/dispatch/round/load_window.h"
#include "hub/dispatch/round/reserve_rule.h"
#include "hub/dispatch/round/round_split.h"
#include "hub/dispatch/round/round_sum.h"
#include "hub/dispatch/round/wire_rows_pool.h"
#include "hub/dispatch/span/span_options.h"
#include "hub/dispatch/trust/answer_trust.h"
#include "hub/dispatch/trust/worker_health.h"
#include "hub/engine/expert_backend.h"
#include "protocol/messages.h"
#include "protocol/wire_frame.h"

namespace moex {

// The id of this hub, and the other hubs that a worker may join (messages.h, Welcome).
struct FleetPlaces {
    std::string own;
    std::vector<HubPlace> others;
    HubNeed need{};  // of this hub
};

struct SwarmOptions {
    std::string model_name, package_sha256;
    WireLimits limits;
    ExpertShape expert_shape;
    std::uint32_t top_k = 0;
    std::uint64_t expert_blob_bytes = 0;
    std::vector<std::uint8_t> layer_is_moe;  // [num_layers]
    std::function<Sha256(std::uint32_t layer, std::uint32_t expert)> blob_hash;
    std::function<bool(std::string_view token)> token_ok;  // compares a join token in constant time
    // Returns the nonce that the worker must sign (PROTOCOL.md, IDENTITY). If the function is
    // empty, workers get no nonce.
    std::function<std::string(WorkerId)> nonce_of;
    // Returns the places of a fleet for WELCOME. If the function is empty, the hub is in no fleet.
    std::function<FleetPlaces()> fleet;
    // If true, x is sent as int8 to workers that accept int8. The option applies where answers are
    // f16 and need not be identical from worker to worker.
    bool x_int8 = false;
    // When deterministic, and where rows are f32, workers send unsummed answers and the hub sums
    // them in expert order.
    ExpertRounding rounding;
    HedgePolicy hedge;
    std::uint32_t replicas = 2;
    HotExpertsOptions hot;  // options of hot experts, which have one copy more than `replicas`
    PlacementChoice placement;
    bool local_fallback = true;
    // With `automatic`, the rule holds while `local_fallback` is on.
    UseWorkers use_workers = UseWorkers::always;
    ReserveOptions reserve;
    bool lz4 = false;
    std::uint32_t queue_depth = 2;  // most groups in flight to one worker
    // A frame with at least this many bytes of encoded rows shares them with the other frames of
    // the round.
    std::uint64_t gathered_bytes_min = WireRowsPool::gathered_bytes_min_default;
    // Bounds on the timeout of an attempt. Between them it is four times the worker's mean latency
    // for groups of this size.
    Duration timeout_min = 100ms;
    Duration timeout_max = 500ms;
    // timeout_max for workers that report a software adapter
    Duration software_timeout_max = 5s;
    // most attempts per call, hedges not counted; after them the local backend computes the call,
    // if the hub has one
    std::uint32_t attempts_max = 3;
    // With local fallback: how long a call waits for a busy worker while the time of a local
    // computation is unknown. Once that time is known, the call waits for that time instead.
    Duration queue_wait = 50ms;
    // How long the engine's thread polls for the end of a round before it sleeps (see
    // protocol/spin_wait.h).
    Duration spin_max{};
    std::uint32_t rounds_waiting_max = 64;  // most rounds that wait for a worker at the same time
    // at this time the local backend computes the remaining slices, or the round fails
    Duration round_deadline = 10s;
    // Without local fallback: how long a round waits for a unit that no worker holds or loads. It
    // waits holder_wait if a worker held the unit within holder_seen_within (a tab with a reset GPU
    // is back in seconds), and holder_wait_unseen if none did. Both waits end before
    // `round_deadline`, and then the request fails.
    Duration holder_wait = 8s;
    Duration holder_wait_unseen = 2s;
    Duration holder_seen_within = 60s;
    // A worker that has units to load and reports no READY for this time, plus the time that four
    // blobs take at 1 Mbit/s, is ordered to release them, and other workers load them. The worker
    // may try again after `load_again_after`, then after twice that time, and so on.
    Duration load_within = 30s;
    Duration load_again_after = 60s;
    // The placement keeps the place of a worker with a broken connection for this time. Units that
    // no other worker has ready are reassigned sooner. 0: all units of the worker are reassigned at
    // once.
    Duration return_within = 20s;
    // How long the hub waits for the first READY of a newcomer that announced a list of held units.
    Duration held_wait = 250ms;
    Duration heartbeat_every = 2s;
    std::uint32_t heartbeats_missed_max = 3;
    Duration hello_within = 5s;
    // a worker is ejected after failures in a row: for 5 s, then 10 s, ... up to 5 min
    HealthOptions health;
    // a worker's BUSY counts as a failure after this many BUSY in a row without an answer between
    // them
    std::uint32_t busy_in_row_max = 3;
    // number of answers that are malformed, not finite or beyond the norm bound, after which the
    // worker is removed
    std::uint32_t bad_answers_max = 3;
    // Bound on the root mean square of y for one pair, relative to max(1, rms of x). An answer
    // beyond the bound is rejected without asking the judge.
    double norm_bound = 1e4;
    CheckOptions checks;
    // Returns how long the worker with this key may not join; zero if it may join now. If the
    // function is empty, the core's own records decide.
    std::function<Duration(std::string_view worker_key)> closed_for;
    std::uint32_t workers_max = 1024;
    // most workers from one IPv4 address or IPv6 /64; 0: no limit
    std::uint32_t workers_per_address_max = 0;
    std::uint64_t seed = 1;               // seed of the placement's hashes
    std::uint32_t first_sequence_id = 1;  // first sequence id of every connection
    SpanOptions spans;
};

// The actions that the core requests from its driver. The driver carries them out in order.
struct SendFrame {
    WorkerId worker;
    WireFrame frame;
};
struct CloseWorker {
    WorkerId worker;
    CloseCode code;
    std::string reason;
};
// Sets the largest frame that this worker may send from now on. The reader of the worker's
// connection enforces the limit.
struct SetFrameLimit {
    WorkerId worker;
    std::uint64_t bytes;
};
// Requests that the local backend computes these pairs. on_local() takes the result. With
// deterministic rounding, x and gates are already rounded for the wire. Gates are 1 where the hub
// multiplies the answers by them while it sums (ExpertRounding). `round` and `attempt` are 0 for a
// call that only measures the time of the local backend.
struct ComputeLocally {
    RoundId round;
    std::uint64_t attempt;
    std::uint16_t layer;
    std::vector<GroupExpert> experts;
    std::vector<std::uint16_t> rows;              // [num_pairs]: row of x of each pair
    std::vector<float> gates;                     // [num_pairs]: gate of each pair
    std::shared_ptr<const std::vector<float>> x;  // [num_tokens, hidden_size]
};
// Requests that the judge computes these rows again (see judge_answer()). on_judgement() takes the
// verdict.
struct CheckAnswer {
    AnswerSample sample;
};
struct RoundDone {
    RoundId round;
    Result<ExpertAnswer> answer;
    RoundSum sum;  // [num_tokens, hidden_size]; set when the answer is ok
};
// reserve: active, but the hub itself is faster just now, so the worker is sent probes only
enum class WorkerState { connecting, loading, active, reserve, unhealthy, draining };
const char* worker_state_name(WorkerState state);  // "connecting", ...
// Returns true if the worker could be sent requests: it is active or in reserve.
inline bool could_serve(WorkerState state) {
    return state == WorkerState::active || state == WorkerState::reserve;
}
struct WorkerView {  // one worker's data for status, metrics and the registry
    WorkerId id = 0;
    WorkerState state = WorkerState::connecting;
    DeviceInfo device;
    std::string nickname, client, worker_key, address;
    bool published_peer = false;  // true: uses the five published messages (protocol/messages.h)
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;
    double power = 1;  // the share of its capacity that the worker wants the hub to use
    bool drained = false, pinned = false;  // orders of the operator that are in force
    bool reads_hubs = false;               // the worker reads HUBS, and moves to another hub
    std::uint32_t units_assigned = 0, units_ready = 0, in_flight = 0;
    Health health = Health::connecting;  // health of the worker, in more states than `state`
    std::uint32_t ejections = 0;
    std::uint64_t groups_sent = 0, groups_answered = 0, pairs_answered = 0, timeouts = 0,
                  errors = 0, busy = 0, late = 0, bad_answers = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0;
    double latency_p50_ms = 0, latency_p99_ms = 0;
    RoundSplit split;
    SpeedProfile speed;  // speed that the worker reported in its HELLO
    SlotFigures slots;   // counters of experts on demand, reported by the worker
    // number of units at each UnitTier, as the worker reported when the units became ready
    std::array<std::uint32_t, num_unit_tiers> tiers{};
    TimePoint joined_at{};
    // Trust in the worker's answers, and the share of its rows that the judge computes again.
    Trust trust = Trust::unproven;
    double check_rate = 1;
    // Totals of the worker's key over all connections: rows found right, pairs credited, lies.
    std::uint64_t rows_verified = 0, pairs_credited = 0;
    std::uint32_t lies = 0;
};
// Orders of the operator for one worker; see SwarmCore::on_order().
enum class WorkerOrder { drain, use, pin, unpin, ban };

// An event of one worker, for the log, the registry and the counters.
struct WorkerEvent {
    // lied: an answer was computed again and differed. banned: the worker was removed for false
    // answers, and may not join for the time that `closed_for` returns. set_aside: its answers
    // differ too often for spans, though no lie is proven; it goes on with experts.
    enum class Kind {
        joined,
        ready,
        left,
        unhealthy,
        healthy,
        removed,
        lied,
        banned,
        set_aside
    } kind;
    WorkerId worker;
    std::string detail;
    // state of the worker at the time of the event; never null
    std::shared_ptr<const WorkerView> view;
    // for removed and left: the close code, if the hub closed the connection
    std::optional<CloseCode> code{};
};
using SwarmAction = std::variant<SendFrame, CloseWorker, SetFrameLimit, ComputeLocally, CheckAnswer,
                                 RoundDone, WorkerEvent>;

struct SwarmCounters {
    // A call is one (layer, expert) in a round.
    std::uint64_t rounds = 0, rounds_failed = 0, calls = 0;
    std::uint64_t calls_remote = 0, calls_local = 0;
    // groups_again: groups sent again after a failure or a timeout of another attempt.
    // redispatched: the slices of these groups.
    std::uint64_t groups_sent = 0, groups_again = 0, groups_answered = 0, hedges_sent = 0,
                  hedges_won = 0, redispatched = 0, timeouts = 0, cancels = 0, late = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0, frames_sent = 0, frames_received = 0,
                  bad_frames = 0, bad_answers = 0, removed = 0;
    // predicted experts in hints; a hint to several workers counts for each of them
    std::uint64_t hints_sent = 0;
    // copies of calls that only measure a worker in reserve or an ejected worker
    std::uint64_t probes_sent = 0;
    // sums of what workers report, over all connections; the field `slots` is not summed
    SlotFigures slots;
    // extra copies of popular units beyond `replicas`: assigned, and removed
    std::uint64_t extras_given = 0, extras_taken = 0;
    // rows_*: rows of answers that were computed again, by verdict. pairs_*: pairs of ended rounds,
    // by the evidence for their answers at the time when they counted.
    std::uint64_t rows_right = 0, rows_wrong = 0, rows_undecided = 0, answers_held = 0, lies = 0,
                  bans = 0;
    std::uint64_t pairs_verified = 0, pairs_proven = 0, pairs_unchecked = 0;
    // pairs left out of a reply, because their rows have a latency budget
    std::uint64_t pairs_late = 0;
    double residual_max = 0;  // largest error of an honest answer, as a share of the tolerance
    // gauges: values now, not totals
    std::uint64_t in_flight = 0, rounds_open = 0, rounds_waiting = 0;
    // Time from the queueing of a request frame to the check of its answer, over recent groups of
    // all workers.
    double group_p50_ms = 0, group_p99_ms = 0, group_p999_ms = 0;
    RoundSplit split;
    LoadWindow load_window;
};
struct Coverage {  // counts over all (layer, expert) units
    std::uint32_t units = 0;
    // units that an active worker has ready, or that the local backend may compute
    std::uint32_t covered = 0;
    // units that are not covered, and belong to a lost worker that may return
    std::uint32_t returning = 0;
    std::uint32_t replicas_min = 0;  // fewest copies of any unit, on workers only
    double replicas_mean = 0;
    // with PlacementRule::groups: units that no worker of their own group shall hold
    std::uint32_t away = 0;
    std::uint32_t extra = 0;  // units that shall have one copy more than `replicas`
};

// The copies of units at the workers that stay, and what leaves with each of them. A worker that an
// operator drains does not stay. Where the hub has a local backend, a worker that computes a layer
// whole counts as a holder of the layer's units: the hub needs no other one.
struct UnitCopies {
    std::uint32_t units = 0;
    std::uint32_t missing = 0;  // units that no worker has ready
    // other units that have fewer copies than wanted, ready or ordered, and that no worker has
    // memory for
    std::uint32_t thin = 0;
    std::uint32_t wanted = 0;  // copies of each unit
    std::uint32_t room = 0;    // further units for which the workers have memory, and no order
    struct Share {
        std::uint32_t alone = 0;    // units that no other worker has ready
        std::uint32_t thinned = 0;  // units that have fewer copies than wanted without this worker
        std::uint32_t room = 0;
        bool is_loading = false;  // it has orders, or a span, that are not ready
        // Layers that it computes whole: all, those of recent steps, and those of recent steps that
        // no other worker could compute at once.
        std::uint32_t layers = 0, layers_used = 0, layers_alone = 0;
    };
    std::map<WorkerId, Share> shares;
};

}  // namespace moex
