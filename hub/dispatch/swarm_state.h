// The inside of SwarmCore, split over five files: swarm_core (events and time),
// swarm_protocol (frames in), swarm_units (who holds what), swarm_dispatch (who
// computes what), swarm_attempts (what is under way). Private to this room.
#pragma once

#include <queue>
#include <tuple>
#include <unordered_map>

#include "hub/dispatch/placement.h"
#include "hub/dispatch/round.h"
#include "hub/dispatch/swarm_core.h"
#include "hub/dispatch/worker_pool.h"

namespace moex {

struct SwarmCore::State {
    using Actions = std::vector<SwarmAction>;
    explicit State(SwarmOptions given);

    // ---- swarm_core.cpp: sessions and time
    enum class TimerKind : std::uint8_t { hello, heartbeat, attempt, round, busy, drain };
    struct Timer {
        TimePoint at;
        TimerKind kind;
        std::uint64_t id;
        bool operator>(const Timer& other) const {
            return std::tie(at, id, kind) > std::tie(other.at, other.id, other.kind);
        }
    };
    void set_timer(TimePoint at, TimerKind kind, std::uint64_t id) { timers.push({at, kind, id}); }
    void on_timer(TimePoint now, const Timer& timer, Actions& actions);
    void send(Worker& worker, Bytes frame, Actions& actions);
    // A frame may be as large as the answers that are outstanding. Told before the question goes
    // out, so that an honest answer, late or not, is never above the limit.
    void tell_frame_limit(Worker& worker, Actions& actions);
    void event(const Worker& worker, WorkerEvent::Kind kind, std::string detail, Actions& actions);
    // The end of a connection, by us (`code` given) or by
    // the other side. Its attempts are given to others.
    void remove_worker(TimePoint now, WorkerId id, WorkerEvent::Kind kind, std::string reason,
                       std::optional<CloseCode> code, Actions& actions);
    void on_heartbeat_time(TimePoint now, Worker& worker, Actions& actions);
    void send_heartbeat(TimePoint now, Worker& worker, std::vector<std::uint32_t> units,
                        Actions& actions);
    void set_unhealthy(TimePoint now, Worker& worker, std::string why, Actions& actions);
    void add_failure(TimePoint now, Worker& worker, const char* why, Actions& actions);
    // Ends the connections of workers that sent DRAIN
    // and have answered; then serves those who wait.
    void close_drained(TimePoint now, Actions& actions);

    // ---- swarm_protocol.cpp: frames in
    void on_frame(TimePoint now, Worker& worker, ByteView frame, Actions& actions);
    void on_first_frame(TimePoint now, Worker& worker, const FrameHeader& header, ByteView frame,
                        Actions& actions);
    std::optional<Error> no_place_for(const Worker& worker, const std::string& worker_key);
    void on_hello(TimePoint now, Worker& worker, ByteView frame, Actions& actions);
    void on_published_peer(TimePoint now, Worker& worker, ByteView frame, Actions& actions);
    void welcome(TimePoint now, Worker& worker, Actions& actions);
    void on_heartbeat(TimePoint now, Worker& worker, const FrameHeader& header, Actions& actions);
    void on_result(TimePoint now, Worker& worker, const FrameHeader& header, ByteView frame,
                   Actions& actions);
    void on_busy(TimePoint now, Worker& worker, const FrameHeader& header, ByteView frame,
                 Actions& actions);
    void on_error(TimePoint now, Worker& worker, ByteView frame, Actions& actions);
    void on_budget(TimePoint now, Worker& worker, ByteView frame, Actions& actions);
    std::uint32_t capacity_of(const Worker& worker) const;
    void on_worker_drain(TimePoint now, Worker& worker, ByteView frame, Actions& actions);
    // An answer that f16 cannot carry is no fault of who computed it: what is still
    // open of the round goes on in bf16. False when that does not help.
    bool retry_in_bf16(Round& round, const Attempt& attempt) const;
    // Tells the peer what was wrong, then closes.
    void refuse(TimePoint now, Worker& worker, const Error& error, CloseCode code,
                Actions& actions);

    // ---- swarm_units.cpp: who holds what
    std::uint32_t unit_of(std::uint32_t layer, std::uint32_t expert) const;  // layer is MoE
    Unit wire_unit(std::uint32_t unit) const;
    bool is_unit(const Unit& unit) const;
    void apply(TimePoint now, const std::vector<PlacementChange>& changes, Actions& actions);
    void send_assignments(TimePoint now, Worker& worker, Actions& actions);
    void send_assign(TimePoint now, Worker& worker, std::span<const std::uint32_t> units,
                     Actions& actions);
    void on_missing_units(TimePoint now, Worker& worker, const Attempt& attempt, const Round& round,
                          Actions& actions);
    void mark_ready(TimePoint now, Worker& worker, std::span<const std::uint32_t> units,
                    Actions& actions);
    void mark_not_ready(Worker& worker, std::uint32_t unit);
    void unassign(TimePoint now, Worker& worker, std::uint32_t unit);
    // Lets go of what a worker holds beyond its share once enough others are ready.
    void release_surplus(TimePoint now, std::uint32_t unit, Actions& actions);
    void forget_holder(TimePoint now, Worker& worker);
    Duration holder_wait_of(std::uint32_t unit, TimePoint unheld_since) const;
    void units_freed(TimePoint now, Actions& actions);

    // ---- swarm_dispatch.cpp: who computes what
    struct Plan {
        Worker* worker = nullptr;
        std::vector<std::uint32_t> pieces;
        std::uint32_t num_pairs = 0;
    };
    bool eligible(const Worker& worker, TimePoint now) const;
    bool has_worker_worth_waiting_for(const Round& round, const Piece& piece, TimePoint now) const;
    bool has_taker(const Piece& piece) const;
    void dispatch(TimePoint now, Round& round, Actions& actions);
    // Gives `open` pieces to workers, few frames first; what found nobody stays in `open`.
    void plan_cover(TimePoint now, Round& round, std::vector<std::uint32_t>& open, bool hedge,
                    Actions& actions);
    void send_plan(TimePoint now, Round& round, Plan& plan, bool hedge,
                   std::vector<std::uint32_t>& unsent, Actions& actions);
    void wait_for_workers(TimePoint now, Round& round, std::vector<std::uint32_t>& open,
                          Actions& actions);
    void finish_round(TimePoint now, Round& round, Actions& actions);
    void fail_round(TimePoint now, Round& round, Error error, Actions& actions);
    void close_round(TimePoint now, Round& round, Actions& actions);
    void on_round_time(TimePoint now, Round& round, Actions& actions);
    void serve_waiting(TimePoint now, Actions& actions);
    Round* find_round(RoundId id);

    // ---- swarm_attempts.cpp: what is under way
    Attempt& new_attempt(Round& round, WorkerId worker);
    Attempt* find_attempt(AttemptId id);
    void erase_attempt(AttemptId id);
    void send_attempt(TimePoint now, Round& round, Worker& worker,
                      std::span<const std::uint32_t> pieces, bool hedge, Actions& actions);
    void compute_locally(TimePoint now, Round& round, std::vector<std::uint32_t> pieces,
                         Actions& actions);
    // Ends one attempt without an answer; the caller dispatches the round again.
    enum class Failure { timeout, error, bad_answer, busy, disconnect };
    void drop_attempt(TimePoint now, Attempt& attempt, Failure failure, Actions& actions);
    void cancel_attempt(TimePoint now, Attempt& attempt, Actions& actions);
    void accept_answer(TimePoint now, Attempt& attempt, std::vector<float> y, bool unsummed,
                       Actions& actions);

    SwarmOptions options;
    SwarmCounters counts;
    LatencyHistogram group_latency;
    // READY of every unit, with room to spare: what a worker may send unasked
    std::uint64_t control_bytes_max = 0;

    WorkerPool pool;
    WorkerId last_worker = 0;
    Placement placement;
    // [num_layers] -> 0.. among MoE layers, -1 for dense ones
    std::vector<std::int32_t> moe_index;
    std::vector<std::uint32_t> moe_layers;
    std::vector<std::vector<Worker*>> holders;  // [units] assigned
    std::vector<std::vector<Worker*>> ready;    // [units] said READY
    std::vector<TimePoint> held_until;  // [units] when a worker last ceased to hold or load it
    std::vector<std::uint32_t> surplus_check;  // units whose surplus holders may go now

    std::unordered_map<RoundId, std::unique_ptr<Round>> rounds;
    std::unordered_map<AttemptId, std::unique_ptr<Attempt>> attempts;
    std::vector<std::unique_ptr<Round>> round_reserve;  // for reuse, with their vectors
    std::vector<std::unique_ptr<Attempt>> attempt_reserve;
    RoundId last_round = 0;
    AttemptId last_attempt = 0;
    std::vector<RoundId> waiting;  // in order of arrival
    bool capacity_freed = false;

    std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers;
    std::vector<WorkerId> leavers;  // sent DRAIN, still connected
    bool draining = false;
    TimePoint drain_at{};

    // Scratch, reused.
    GroupDispatch group;
    std::vector<Plan> plans;
    std::size_t num_plans = 0;
    std::vector<Worker*> candidates;
    std::uint64_t mark = 0;
};

}  // namespace moex
