// The inside of SwarmCore, split over thirteen files: swarm_core (events and time), swarm_session
// (who may join), swarm_protocol (frames in), swarm_hints (what is foreseen), swarm_orders (the
// host's word), swarm_units (who holds what), swarm_heat (what is worth one more copy),
// swarm_dispatch (who computes what), swarm_attempts (what is under way), swarm_checks and
// swarm_witness (what is computed again), swarm_invariants (what must hold of it all), swarm_views
// (what others are told of it). Private to this room.
#pragma once

#include <queue>
#include <set>
#include <tuple>
#include <unordered_map>

#include "hub/dispatch/core/worker_pool.h"
#include "hub/dispatch/placement/unit_directory.h"
#include "hub/dispatch/round/attempt_policy.h"
#include "hub/dispatch/round/round.h"
#include "hub/dispatch/round/round_rows.h"
#include "hub/dispatch/round/router.h"
#include "hub/dispatch/round/worker_answer.h"
#include "hub/dispatch/trust/answer_trust.h"

namespace moex {

struct SwarmState {
    using Actions = std::vector<SwarmAction>;
    explicit SwarmState(SwarmOptions given);

    // ---- swarm_core.cpp: sessions and time
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
        drain
    };
    struct Timer {
        TimePoint at;
        TimerKind kind;
        std::uint64_t id;
        bool operator>(const Timer& other) const {
            return std::tie(at, id, kind) > std::tie(other.at, other.id, other.kind);
        }
    };

    // One event as it is handled: when it came, and the actions that follow from it.
    struct EventContext {
        SwarmState& state;
        TimePoint now;
        Actions& out;

        void send(Worker& worker, WireFrame frame);
        void event(const Worker& worker, WorkerEvent::Kind kind, std::string detail);
        void set_timer(TimePoint at, TimerKind kind, std::uint64_t id) {
            state.timers.push({at, kind, id});
        }
    };

    void on_timer(EventContext& context, const Timer& timer);
    // A frame may be as large as the answers that are outstanding. Told before the question goes
    // out, so that an honest answer, late or not, is never above the limit.
    void tell_frame_limit(EventContext& context, Worker& worker);
    void count_frame(Worker& worker, std::uint64_t frame_bytes);
    void on_sign_of_life(Worker& worker, TimePoint now);
    // The end of a connection, by us (`code` given) or by
    // the other side. Its attempts are given to others.
    void remove_worker(EventContext& context, WorkerId id, WorkerEvent::Kind kind,
                       std::string reason, std::optional<CloseCode> code);
    void on_heartbeat_time(EventContext& context, Worker& worker);
    void send_heartbeat(EventContext& context, Worker& worker, std::vector<std::uint32_t> units);
    void on_silence(EventContext& context, Worker& worker);
    // It answered something that was sent at `sent_at`, in time or not, needed or not.
    void on_sign_of_work(EventContext& context, Worker& worker, TimePoint sent_at);
    void add_failure(EventContext& context, Worker& worker, const char* why);
    bool may_eject_one_more() const;
    // Whether the whole swarm has gone silent: who was asked, all of them, and nobody was heard.
    void watch_for_silence(EventContext& context, const Attempt& late);
    // Ends the connections of workers that sent DRAIN
    // and have answered; then serves those who wait.
    void close_drained(EventContext& context);

    // ---- swarm_session.cpp: the first frame, and what follows from it
    void on_first_frame(EventContext& context, Worker& worker, const FrameHeader& header,
                        ByteView frame);
    std::optional<Error> no_place_for(const Worker& worker, const std::string& worker_key);
    void on_hello(EventContext& context, Worker& worker, ByteView frame);
    void take_hello(Worker& worker, const Hello& hello);
    void on_published_peer(EventContext& context, Worker& worker, ByteView frame);
    void welcome(EventContext& context, Worker& worker);
    // Its share, once it is known what it `held` already; at most once.
    void place(EventContext& context, Worker& worker, std::span<const std::uint32_t> held);

    // ---- swarm_protocol.cpp: frames in
    void on_frame(EventContext& context, Worker& worker, ByteView frame);
    void on_heartbeat(EventContext& context, Worker& worker, const FrameHeader& header);
    AnswerReader reader_of(const Worker& worker) const;
    void on_answer(EventContext& context, Worker& worker, WorkerAnswer answer);
    void on_unawaited_result(EventContext& context, Worker& worker, std::uint32_t sequence_id);
    void on_unasked_answer(EventContext& context, Worker& worker, std::uint32_t sequence_id);
    // What is wrong with an answer that was asked for; empty: nothing.
    std::string fault_of(const Worker& worker, const Attempt& attempt, const Round& round,
                         const WorkerAnswer& answer) const;
    void on_wrong_answer(EventContext& context, Worker& worker, Attempt& attempt,
                         const std::string& wrong);
    void on_busy(EventContext& context, Worker& worker, const FrameHeader& header, ByteView frame);
    void on_error(EventContext& context, Worker& worker, ByteView frame);
    void on_budget(EventContext& context, Worker& worker, ByteView frame);
    void on_power(EventContext& context, Worker& worker, ByteView frame);
    void on_slots(EventContext& context, Worker& worker, ByteView frame);
    void take_tiers(Worker& worker, const Ready& ready);
    std::uint32_t capacity_of(const Worker& worker) const;
    void on_worker_drain(EventContext& context, Worker& worker, ByteView frame);
    // An answer that f16 cannot carry is no fault of who computed it: what is still
    // open of the round goes on in bf16. False when that does not help.
    bool retry_in_bf16(Round& round, const Attempt& attempt) const;
    // Tells the peer what was wrong, then closes.
    void refuse(EventContext& context, Worker& worker, const Error& error, CloseCode code);

    // ---- swarm_units.cpp: who holds what
    std::uint32_t unit_of(std::uint32_t layer, std::uint32_t expert) const;  // layer is MoE
    Unit wire_unit(std::uint32_t unit) const;
    bool is_unit(const Unit& unit) const;
    std::vector<std::uint32_t> units_of(const std::vector<Unit>& named) const;  // of the model's
    // What the directory has ordered becomes frames. Follows every event that it was told.
    void carry_out_orders(EventContext& context);
    void send_assign(EventContext& context, Worker& worker, std::span<const std::uint32_t> units);
    void send_release(EventContext& context, Worker& worker, std::span<const std::uint32_t> units);
    void on_missing_units(EventContext& context, Worker& worker, const Attempt& attempt,
                          const Round& round);
    void mark_ready(EventContext& context, Worker& worker, std::span<const std::uint32_t> units);
    void check_loading(EventContext& context, Worker& worker);
    Duration holder_wait_of(std::uint32_t unit, TimePoint unheld_since) const;
    // Where it stands on the placement's ring: the worker's own key brings it back there.
    static std::uint64_t ring_key_of(const Worker& worker);

    // ---- swarm_dispatch.cpp: who computes what
    bool eligible(const Worker& worker, TimePoint now) const;
    // Nobody who holds the unit serves: those are asked who are ejected.
    bool in_need(std::uint32_t unit) const;
    void send_probes(EventContext& context, Round& round);
    bool send_probe(EventContext& context, Round& round, Worker& worker);
    bool is_local(const CallSlice& slice);
    // How long computing so much here takes, from asking to answer; nullopt until it was done.
    std::optional<Duration> local_time(std::uint32_t num_pairs) const;
    TimePoint free_at(const Worker& worker, TimePoint now);
    bool has_worker_worth_waiting_for(const Round& round, const CallSlice& slice, TimePoint now,
                                      std::optional<Duration> here);
    void keep_what_may_wait(EventContext& context, Round& round, std::vector<std::uint32_t>& open,
                            std::vector<std::uint32_t>& local);
    bool has_taker(const CallSlice& slice) const;
    std::span<const std::uint32_t> slice_pairs_max(std::uint32_t layer);
    void set_pairs_max(Worker& worker, std::uint32_t pairs);
    void dispatch(EventContext& context, Round& round);
    void pay_for_retries(EventContext& context, Round& round);
    bool can_take(const Worker& worker, const CallSlice& slice) const;
    // Gives `open` slices to workers, few frames first; what found nobody stays in `open`. A hedge
    // goes to idle ones.
    void plan_cover(EventContext& context, Round& round, std::vector<std::uint32_t>& open,
                    bool hedge);
    void prefer_proven();
    void prefer_resident(std::uint32_t unit, TimePoint now);
    std::optional<std::uint32_t> route_of(Worker& worker, Dtype dtype, bool idle_only,
                                          TimePoint now);
    void send_group(EventContext& context, Round& round, Worker& worker,
                    std::vector<std::uint32_t> slices, bool hedge,
                    std::vector<std::uint32_t>& unsent);
    void wait_for_workers(EventContext& context, Round& round, std::vector<std::uint32_t>& open);
    // These two end the round and say true when there is no use in waiting.
    bool fail_what_nobody_takes(EventContext& context, Round& round,
                                std::span<const std::uint32_t> open);
    bool fail_what_nobody_holds(EventContext& context, Round& round,
                                std::span<const std::uint32_t> open);
    void forgive(EventContext& context, Round& round, std::span<const std::uint32_t> open);
    // When who has not answered this slice in time may be asked for it once more.
    TimePoint overdue_retry_at(const CallSlice& slice, WorkerId worker);
    void make_room(EventContext& context, Worker& worker);
    void finish_round(EventContext& context, Round& round);
    void fail_round(EventContext& context, Round& round, Error error);
    void close_round(EventContext& context, Round& round);
    void on_round_time(EventContext& context, Round& round);
    void serve_waiting(EventContext& context);
    Round* find_round(RoundId id);

    // ---- swarm_hints.cpp
    void send_hints(EventContext& context, std::span<const ExpertHint> hints);
    std::uint16_t deadline_of(const ExpertHint& hint) const;

    // ---- swarm_heat.cpp: what is worth one more copy
    void count_requested(EventContext& context, const ExpertBatch& batch);
    void count_predicted(EventContext& context, std::span<const ExpertHint> hints);
    void update_hot_experts(EventContext& context);

    // ---- swarm_attempts.cpp: what is under way
    Attempt& new_attempt(Round& round, WorkerId worker);
    Attempt* find_attempt(AttemptId id);
    void erase_attempt(AttemptId id);
    void send_attempt(EventContext& context, Round& round, Worker& worker,
                      std::span<const std::uint32_t> slices, bool hedge);
    // How long its slices are predicted to wait for experts; from here on they lie in its memory.
    Duration begin_load(const Round& round, const Attempt& attempt, Worker& worker);
    bool is_loaded_elsewhere(const Round& round, const Attempt& attempt,
                             const Worker& worker) const;
    void plan_second(EventContext& context, const Round& round, const Attempt& attempt,
                     const Worker& worker);
    void compute_locally(EventContext& context, Round& round, std::vector<std::uint32_t> slices);
    // Ends one attempt without an answer; the caller dispatches the round again.
    enum class Failure { error, bad_answer, busy, disconnect };
    void drop_attempt(EventContext& context, Attempt& attempt, Failure failure);
    bool is_queued_behind_others(EventContext& context, Attempt& attempt);
    void on_attempt_late(EventContext& context, Attempt& attempt);
    // A second attempt beside one that takes longer than most, where the budget has room for it.
    void on_hedge_time(EventContext& context, Attempt& attempt);
    bool compute_beside(EventContext& context, Round& round, const Attempt& attempt,
                        std::span<const std::uint32_t> slices);
    void learn_unanswered(TimePoint now, const Attempt& attempt, Worker& worker);
    void learn_latency(TimePoint now, const Attempt& attempt, Worker& worker);
    void cancel_attempt(EventContext& context, Attempt& attempt);
    void accept_answer(EventContext& context, Attempt& attempt, std::vector<float> y, bool unsummed,
                       Evidence evidence);

    // ---- swarm_checks.cpp: what is computed again
    // Rows that the judge has, and what waits for it.
    struct PendingCheck {
        WorkerId worker = 0;
        std::string key;  // of its record
        std::uint64_t address = 0;
        WorkerArithmetic arithmetic = WorkerArithmetic::exact;
        CheckPlan plan;
        std::vector<std::uint32_t> units;  // of the sample's pairs
        AttemptId attempt = 0;             // held until the verdict; 0: it has counted already
        std::vector<float> y;              // of the held answer
        bool unsummed = true;
        // Where a second worker judges: who said something else, and what.
        std::string dissenter;
        std::vector<float> dissent;
    };
    // An answer of the right shape: it counts now, or once it was judged.
    void receive_answer(EventContext& context, Worker& worker, Attempt& attempt,
                        WorkerAnswer answer, bool unsummed);
    bool is_odd(const Round& round, const Attempt& attempt, std::span<const double> square_sums,
                bool unsummed) const;
    AnswerSample sample_of(const Round& round, const Attempt& attempt, std::span<const float> y,
                           bool unsummed, std::span<const std::uint32_t> rows,
                           std::vector<std::uint32_t>& units) const;
    void on_judgement(EventContext& context, std::uint64_t id, const Judgement& judgement);
    static std::string wrong_rows(const CheckPlan& plan);
    // Its record says so already; `what` was wrong.
    void on_wrong_rows(EventContext& context, WorkerId liar, const std::string& what, bool banned);
    // Without weights: another worker is asked the same, and a third one where those two differ.
    void hold_for_witness(EventContext& context, Worker& worker, Attempt& attempt, CheckPlan plan,
                          std::vector<float> y, bool unsummed);
    Worker* find_witness(TimePoint now, const Round& round, const Attempt& attempt,
                         const PendingCheck& check);
    bool ask_witness(EventContext& context, std::uint64_t id);
    void on_witness(EventContext& context, Worker& witness, Attempt& attempt, std::vector<float> y,
                    bool unsummed);
    void end_witness(Round& round, Attempt& attempt);
    void settle_dissent(EventContext& context, std::uint64_t id);
    void settle_without_witness(EventContext& context);
    void renew_trust(TimePoint now);
    void punish(EventContext& context, const std::string& key, const CheckPlan& plan);
    void drop_held(EventContext& context, WorkerId worker, std::vector<RoundId>& touched);
    WorkerView view_of(const Worker& worker) const;
    // Why this worker may not join now, if its key is closed.
    std::optional<Error> closed(TimePoint now, std::string_view worker_key) const;

    // ---- swarm_invariants.cpp
    void check_round(const Round& round, std::vector<std::string>& broken);
    void check_worker(const Worker& worker, std::vector<std::string>& broken);

    SwarmOptions options;
    SwarmCounters counts;
    AnswerTrust trust;
    ExpertGains gains;
    std::unordered_map<std::uint64_t, PendingCheck> checks;
    std::uint64_t last_check = 0;
    NewcomerShare newcomers;
    std::vector<std::uint64_t> witnesses_lost;  // checks whose witness will say nothing

    LatencyHistogram group_latency;
    LoadWindowMeter load_window;
    std::int32_t last_moe_index = 0;  // of the newest round's layer
    LatencyEstimates latency;         // of all workers
    LatencyEstimates local_latency;
    std::shared_ptr<AnswerMemory> answer_memory;
    RowReader row_reader;
    AttemptPolicy policy;
    // READY of every unit, with room to spare: what a worker may send unasked
    std::uint64_t control_bytes_max = 0;

    WorkerPool pool;
    WorkerId last_worker = 0;
    std::uint32_t num_on_demand = 0;  // who hold more than lies in their memory
    std::uint32_t num_weak = 0;       // who take less in one group than the wire allows
    UnitDirectory directory;
    HotExperts hot_experts;
    std::optional<TimePoint> units_timer_at;
    std::set<std::uint64_t> drained;  // ring keys, by their host's order
    // [num_layers] -> 0.. among MoE layers, -1 for dense ones
    std::vector<std::int32_t> moe_index;
    std::vector<std::uint32_t> moe_layers;
    std::unordered_map<RoundId, std::unique_ptr<Round>> rounds;
    std::unordered_map<AttemptId, std::unique_ptr<Attempt>> attempts;
    std::vector<std::unique_ptr<Round>> round_reserve;  // for reuse, with their vectors
    std::vector<std::unique_ptr<Attempt>> attempt_reserve;
    RoundId last_round = 0;
    AttemptId last_attempt = 0;
    std::vector<RoundId> waiting;  // in order of arrival
    bool capacity_freed = false;
    std::vector<WorkerId> probing;  // half-open
    // Nobody was heard of since all of these were asked; `all_silent`: that is enough to think the
    // network gone, and the local backend computes everything until somebody is heard.
    std::vector<WorkerId> unanswered;
    TimePoint heard_at{};
    bool all_silent = false;

    std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers;
    std::vector<WorkerId> leavers;  // sent DRAIN, still connected
    bool draining = false;
    TimePoint drain_at{};

    // Scratch, reused.
    GroupDispatch group;
    Router router;
    std::vector<Worker*> routed;  // as the router numbers them
    std::vector<Duration> loads;  // of each, for what only it and others that load it can take
    std::vector<std::uint32_t> takers;
    std::vector<std::uint32_t> pairs_max_of;  // [num_experts]
    std::uint64_t mark = 0;
};

}  // namespace moex
