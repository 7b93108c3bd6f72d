// What dispatch is told and what it answers: ids, options, actions, views and counters.
// Plain data: swarm_core.h has the core that takes and gives them.
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
#include "hub/dispatch/round/round_split.h"
#include "hub/dispatch/round/round_sum.h"
#include "hub/dispatch/round/wire_rows_pool.h"
#include "hub/dispatch/trust/answer_trust.h"
#include "hub/dispatch/trust/worker_health.h"
#include "hub/engine/expert_backend.h"
#include "protocol/messages.h"
#include "protocol/wire_frame.h"

namespace moex {

struct SwarmOptions {
    std::string model_name, package_sha256;
    WireLimits limits;
    ExpertShape expert_shape;
    std::uint32_t top_k = 0;
    std::uint64_t expert_blob_bytes = 0;
    std::vector<std::uint8_t> layer_is_moe;  // [num_layers]
    std::function<Sha256(std::uint32_t layer, std::uint32_t expert)> blob_hash;
    std::function<bool(std::string_view token)> token_ok;  // join token check, constant time
    // What a worker is given to sign (PROTOCOL.md, IDENTITY). Empty: nothing.
    std::function<std::string(WorkerId)> nonce_of;
    // x travels as int8 to who takes it so, where answers travel as f16 and need not be the same
    // whoever computes them.
    bool x_int8 = false;
    ExpertRounding rounding;  // deterministic: unsummed answers, summed here in expert order
    HedgePolicy hedge;
    std::uint32_t replicas = 2;
    HotExpertsOptions hot;  // which experts have one more copy than that
    PlacementChoice placement;
    bool local_fallback = true;
    bool lz4 = false;
    std::uint32_t queue_depth = 2;  // groups in flight per worker
    // A frame with so many bytes of rows, or more, shares them with the round's other frames.
    std::uint64_t gathered_bytes_min = WireRowsPool::gathered_bytes_min_default;
    Duration timeout_min = 100ms;  // per attempt: 4 x the worker's p99 for this size, within these
    Duration timeout_max = 500ms;
    // for workers that say they compute on a software adapter
    Duration software_timeout_max = 5s;
    // per call, hedges not counted; then the local backend, where there is one
    std::uint32_t attempts_max = 3;
    // With local fallback: how long a call waits for a busy worker until it is known how long
    // computing it here takes. Then it waits for as long as that.
    Duration queue_wait = 50ms;
    // So long the engine's thread looks for a round's end before it sleeps (protocol/spin_wait.h).
    Duration spin_max{};
    std::uint32_t rounds_waiting_max = 64;  // rounds that wait for a worker at a time
    Duration round_deadline = 10s;  // then the rest goes to the local backend, or the round fails
    // Without local fallback: how long a round waits for a unit that no worker holds or loads.
    // Longer where one did a moment ago (a tab whose GPU was reset is back in seconds) than where
    // nobody ever did. Both end before `round_deadline`, and so does the request.
    Duration holder_wait = 8s;
    Duration holder_wait_unseen = 2s;
    Duration holder_seen_within = 60s;
    // A worker that has units to load and says READY of none for so long, and for as long as four
    // blobs take at 1 Mbit/s, is told to let go of them: they go to others. It may try again after
    // `load_again_after`, then after twice that, and so on.
    Duration load_within = 30s;
    Duration load_again_after = 60s;
    // A worker whose line broke has its place back when it returns within this time. What nobody
    // else has ready goes to others sooner; 0: everything does at once.
    Duration return_within = 20s;
    // How long a newcomer is waited for that says it will tell what it has already.
    Duration held_wait = 250ms;
    Duration heartbeat_every = 2s;
    std::uint32_t heartbeats_missed_max = 3;
    Duration hello_within = 5s;
    // failures in a row end in ejection: 5 s, 10 s, ... up to 5 min
    HealthOptions health;
    // of a worker without an answer between them: from here on BUSY counts as a failure
    std::uint32_t busy_in_row_max = 3;
    // malformed, non-finite or beyond the norm bound: removed
    std::uint32_t bad_answers_max = 3;
    // |y| of one pair, root mean square, relative to max(1, rms of x): beyond it nothing is asked
    // of the judge any more
    double norm_bound = 1e4;
    CheckOptions checks;
    // How long a worker's key stays closed, zero when it is not. Empty: the core's own memory.
    std::function<Duration(std::string_view worker_key)> closed_for;
    std::uint32_t workers_max = 1024;
    // Of them from one IPv4 address or IPv6 /64; 0: as many as there are.
    std::uint32_t workers_per_address_max = 0;
    std::uint64_t seed = 1;               // of placement
    std::uint32_t first_sequence_id = 1;  // of every connection
};

// What the core asks of its driver, in order.
struct SendFrame {
    WorkerId worker;
    WireFrame frame;
};
struct CloseWorker {
    WorkerId worker;
    CloseCode code;
    std::string reason;
};
// The largest frame that this worker may send from now on; its reader enforces it.
struct SetFrameLimit {
    WorkerId worker;
    std::uint64_t bytes;
};
// Compute these pairs with the local backend and answer with on_local().
// x and gates are rounded for the wire already when deterministic.
struct ComputeLocally {
    RoundId round;
    std::uint64_t attempt;
    std::uint16_t layer;
    std::vector<GroupExpert> experts;
    std::vector<std::uint16_t> rows;              // [num_pairs]
    std::vector<float> gates;                     // [num_pairs]
    std::shared_ptr<const std::vector<float>> x;  // [num_tokens, hidden_size]
};
// Compute these rows again and answer with on_judgement(); see judge_answer().
struct CheckAnswer {
    AnswerSample sample;
};
struct RoundDone {
    RoundId round;
    Result<ExpertAnswer> answer;
    RoundSum sum;  // of [num_tokens, hidden_size] when the answer is ok
};
enum class WorkerState { connecting, loading, active, unhealthy, draining };
const char* worker_state_name(WorkerState state);  // "connecting", ...
struct WorkerView {                                // for status, metrics and the registry
    WorkerId id = 0;
    WorkerState state = WorkerState::connecting;
    DeviceInfo device;
    std::string nickname, client, worker_key, address;
    bool published_peer = false;  // speaks the five published messages
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;
    double power = 1;  // the share of what it could do that it wants to be asked for
    bool drained = false, pinned = false;  // by its host's order
    std::uint32_t units_assigned = 0, units_ready = 0, in_flight = 0;
    Health health = Health::connecting;  // finer than `state`
    std::uint32_t ejections = 0;
    std::uint64_t groups_sent = 0, groups_answered = 0, pairs_answered = 0, timeouts = 0,
                  errors = 0, busy = 0, late = 0, bad_answers = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0;
    double latency_p50_ms = 0, latency_p99_ms = 0;
    RoundSplit split;
    SpeedProfile speed;  // as its HELLO told
    SlotFigures slots;   // of experts on demand, as it says itself
    // units by UnitTier, as it said when they became ready
    std::array<std::uint32_t, num_unit_tiers> tiers{};
    TimePoint joined_at{};
    // Whether its answers are believed, and the share of its rows that are computed again.
    Trust trust = Trust::unproven;
    double check_rate = 1;
    // of its key, over all of its connections: found right; of all its answers, wrong
    std::uint64_t rows_verified = 0, pairs_credited = 0;
    std::uint32_t lies = 0;
};
// What a host orders of one worker; see SwarmCore::on_order().
enum class WorkerOrder { drain, use, pin, unpin, ban };

// Something worth a line in a log, a row in the registry or a count.
struct WorkerEvent {
    // lied: an answer was computed again and was not that. banned: removed for it, `closed_for`.
    enum class Kind { joined, ready, left, unhealthy, healthy, removed, lied, banned } kind;
    WorkerId worker;
    std::string detail;
    std::shared_ptr<const WorkerView> view;  // the worker as it was then; never null
    std::optional<CloseCode> code{};         // of removed and left: how we closed it
};
using SwarmAction = std::variant<SendFrame, CloseWorker, SetFrameLimit, ComputeLocally, CheckAnswer,
                                 RoundDone, WorkerEvent>;

struct SwarmCounters {
    // a call: one (layer, expert) of a round
    std::uint64_t rounds = 0, rounds_failed = 0, calls = 0;
    std::uint64_t calls_remote = 0, calls_local = 0;
    std::uint64_t groups_sent = 0, groups_again = 0,  // calls that failed or were late elsewhere
        groups_answered = 0, hedges_sent = 0, hedges_won = 0, redispatched = 0, timeouts = 0,
                  cancels = 0, late = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0, frames_sent = 0, frames_received = 0,
                  bad_frames = 0, bad_answers = 0, removed = 0;
    std::uint64_t hints_sent = 0;  // experts that coming layers may be asked for, by worker
    SlotFigures slots;             // of all connections, as workers say; without `slots`
    std::uint64_t extras_given = 0, extras_taken = 0;  // copies beyond `replicas`, by what is asked
    // Rows of answers that were computed again, and what came of it; pairs of ended rounds by what
    // was known of them when they counted.
    std::uint64_t rows_right = 0, rows_wrong = 0, rows_undecided = 0, answers_held = 0, lies = 0,
                  bans = 0;
    std::uint64_t pairs_verified = 0, pairs_proven = 0, pairs_unchecked = 0;
    std::uint64_t pairs_late = 0;  // not waited for, since their row need not
    double residual_max = 0;       // of answers that were right, as a share of what is tolerated
    std::uint64_t in_flight = 0, rounds_open = 0, rounds_waiting = 0;  // gauges
    // From frame queued to answer checked, over recent groups of all workers.
    double group_p50_ms = 0, group_p99_ms = 0, group_p999_ms = 0;
    RoundSplit split;
    LoadWindow load_window;
};
struct Coverage {  // of (layer, expert) units
    std::uint32_t units = 0;
    std::uint32_t covered = 0;       // an active worker is ready, or the local backend may answer
    std::uint32_t replicas_min = 0;  // by workers alone
    double replicas_mean = 0;
    std::uint32_t away = 0;   // of PlacementRule::groups: nobody of their group is to hold them
    std::uint32_t extra = 0;  // that are to have one copy more than `replicas`
};

}  // namespace moex
