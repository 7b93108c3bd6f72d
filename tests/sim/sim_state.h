// The state of SimSwarm: the clock, the event queue, and the true state of each worker. The header
// is private to this folder. sim_hub.cpp implements the hub's driver, sim_worker.cpp the network
// and the workers, sim_liveness.cpp the liveness checks, and sim_swarm.cpp the public methods.
#pragma once

#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <tuple>

#include "hub/dispatch/core/swarm_core.h"
#include "tests/sim/sim_span_holder.h"
#include "tests/sim/sim_types.h"
#include "tests/sim/unit_ledger.h"

namespace moex::sim {

struct SimState {
    // One direction of a worker's connection.
    struct Line {
        TimePoint last{};     // time at which the last frame arrives; no later frame overtakes it
        TimePoint free_at{};  // time at which the transmission of all frames sent so far ends
        std::uint64_t bytes_per_s = 0;
    };
    struct SimWorker {
        WorkerId id = 0;
        Peer peer = Peer::ours;
        bool alive = true, stalled = false, compute_stalled = false, loading_stalled = false,
             forgot = false;
        WorkerProfile profile;
        std::string address, key;
        Duration download{};
        TimePoint reads_at{};
        std::uint32_t pairs_max = std::numeric_limits<std::uint32_t>::max();
        bool overflows_f16 = false;
        std::uint64_t num_answers = 0;
        std::vector<float> previous;  // the worker's latest answer, for a liar that repeats answers
        std::uint32_t busy_ms = 0;
        std::string error_code;
        bool error_fatal = false;
        TimePoint free_at{}, loaded_at{}, stalls_until{};
        // One expert in the memory of a worker with `slots`. there_at: time at which the load of
        // the expert ends. wanted: number of the latest request for it. The expert with the least
        // recent request is evicted first.
        struct Slot {
            TimePoint there_at{};
            std::uint64_t wanted = 0;
        };
        std::map<Unit, Slot> slots;
        TimePoint brings_until{}, urgent_until{};
        std::uint64_t num_wanted = 0, missed = 0;
        Line to_worker, to_hub;
        std::set<std::uint32_t> cancelled, computing;
        std::set<Unit> held;
        UnitLedger ledger;
        std::vector<Bytes> received;
        std::optional<CloseCode> closed;
        std::optional<TimePoint> ejected_at;
        std::uint64_t frame_limit = unauthenticated_frame_bytes_max;
        SimSpanHolder spans;
    };
    struct Event {
        TimePoint at;
        std::uint64_t order;
        std::function<void()> run;
        bool background;  // a background event alone does not keep run_until_idle() running
        bool operator>(const Event& other) const {
            return std::tie(at, order) > std::tie(other.at, other.order);
        }
    };

    SimOptions options;
    WireLimits limits;
    std::unique_ptr<SwarmCore> core;
    std::mt19937_64 random;
    TimePoint now{1s};
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
    std::uint64_t order = 0, hash = 0xcbf29ce484222325ull, num_events = 0;
    std::size_t foreground = 0, in_flight_most = 0;
    std::uint64_t num_checks = 0, num_frames_read = 0, num_gathered = 0;
    std::map<WorkerId, SimWorker> workers;
    std::map<std::string, std::set<Unit>> caches;  // cached units, by worker_key
    std::uint64_t bytes_downloaded = 0;
    std::map<RoundId, RoundOutcome> outcomes;
    std::vector<std::string> violations, lines;
    std::vector<WorkerEvent> worker_events;
    // workers that the hub removed: their answers must not be used any more
    std::set<WorkerId> removed_now;
    std::deque<ComputeLocally> local_calls;  // the local backend's calls; the first is computed now
    std::optional<TimePoint> tick_at;
    // [num_layers * num_experts]: time since which a unit has no holder
    std::vector<std::optional<TimePoint>> uncovered_since;
    // For each open round and each of its units: the workers that could answer when the round
    // began.
    std::map<RoundId, std::map<Unit, std::vector<WorkerId>>> holders_of;

    double normal() {
        return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307 * uniform());
    }
    double uniform() { return static_cast<double>(random() >> 11) * 0x1p-53; }
    bool strikes(double share) { return share > 0 && uniform() < share; }
    Duration jitter(Duration most) {
        return Duration(static_cast<std::int64_t>(uniform() * static_cast<double>(most.count())));
    }

    void note(const char* what, std::uint64_t id, ByteView bytes = {});
    void violation(std::string what) {
        violations.push_back(text("at ", to_ms(now.time_since_epoch()), " ms: ", what));
    }

    void at(TimePoint when, std::function<void()> run, bool background = false) {
        events.push({when, order++, std::move(run), background});
        if (!background) ++foreground;
    }

    // ---- The following functions carry out the hub's actions.
    void perform(std::vector<SwarmAction>& actions);
    void act(SendFrame& action);
    void act(CloseWorker& action);
    void act(SetFrameLimit& action);
    void act(ComputeLocally& action);
    void begin_local();
    void end_local();
    // Drops the local calls of an ended round that have not begun.
    void drop_local(RoundId round);
    void act(CheckAnswer& action);
    void act(RoundDone& action);
    void act(WorkerEvent& action);
    bool worker_events_removed(WorkerId worker) const;
    void leave_out_late(RoundId round, RoundOutcome& outcome);
    void check_value(RoundId round, RoundOutcome& outcome);
    void check_invariants();
    void check_bound(WorkerId id);

    // ---- The following functions check liveness (sim_liveness.cpp).
    void watch_liveness();
    void check_coverage();
    void check_budget();
    void check_not_ejected(const SimWorker& worker);
    void remember_holders(RoundId round, std::uint32_t layer,
                          const std::vector<std::uint16_t>& experts);
    void check_failure(RoundId round, const Error& error);
    bool is_sound(const SimWorker& worker) const;

    // ---- The following functions move frames over the simulated network.
    void flip(Bytes& frame);
    void carry(Bytes frame, Line& line, std::function<void(Bytes)> arrive);
    void to_hub(WorkerId id, Bytes frame);
    void hub_reads(WorkerId id, const Bytes& frame);

    // ---- The following functions simulate a worker.
    void worker_reads(WorkerId id, Bytes frame);
    bool network_reorders() const;
    void begin_group(SimWorker& worker, const FrameHeader& header, Bytes frame);
    void load(SimWorker& worker, std::vector<Unit> units);
    // bring_for_group() loads the units of a group, which does not start before they are loaded.
    // bring() loads `units` into the memory of a worker with `slots`, and returns the time at which
    // all of them are loaded.
    void bring_for_group(SimWorker& worker, std::span<const Unit> units);
    TimePoint bring(SimWorker& worker, std::span<const Unit> units, bool urgent);
    void tell_held(const SimWorker& worker);
    // Adds `units` to the worker's cache. Returns how many of them the worker had to download.
    std::uint64_t download(SimWorker& worker, std::span<const Unit> units);
    Duration compute_time(const SimWorker& worker, std::uint32_t num_pairs);
    Duration stall_time(const SimWorker& worker);
    TimePoint answer_time(SimWorker& worker, std::span<const Unit> units, std::uint32_t num_pairs);
    std::optional<TimePoint> time_of_others(const SimWorker& worker, std::span<const Unit> units,
                                            std::uint32_t num_pairs);
    Lie next_lie(SimWorker& worker);
    // Handles a frame about spans. Returns false if the frame is damaged.
    bool reads_span_frame(SimWorker& worker, FrameType type, const Bytes& frame);
    Bytes compute(SimWorker& worker, const Bytes& frame);
    Bytes compute_single(SimWorker& worker, const Bytes& frame);
    void say(SimWorker& worker, Lie lie, std::vector<float>& y);
    void leave(WorkerId id);
    void say_hello(WorkerId id);

    // ---- The following function advances the simulated time.
    bool step(TimePoint limit);
};

}  // namespace moex::sim
