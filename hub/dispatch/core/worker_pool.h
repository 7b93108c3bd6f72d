// What dispatch knows of each worker: its session, the units it
// holds, the attempts it has, how fast and how honest it was.
// Pure state with its rules; frames are built and rounds
// are decided elsewhere (swarm_protocol, swarm_core).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hub/dispatch/core/slot_guess.h"
#include "hub/dispatch/placement/unit_directory.h"
#include "hub/dispatch/round/asked_groups.h"
#include "hub/dispatch/round/latency_histogram.h"
#include "hub/dispatch/round/wire_rows_pool.h"
#include "hub/dispatch/swarm_types.h"
#include "hub/dispatch/trust/worker_health.h"

namespace moex {

// Latency depends on how much was asked: one histogram for each size of group.
inline constexpr std::size_t num_size_classes = 4;
std::size_t size_class_of(std::uint32_t num_pairs);  // up to 8, 64, 512, more

// How long groups of one size take, and how far they stray: the mean and the mean deviation of
// recent ones. One that stalls moves it no further than four of the usual length would.
// Source: Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988.
struct LatencyEstimate {
    std::uint32_t num_samples = 0;
    double mean_ms = 0, deviation_ms = 0;
    TimePoint at{};

    void record(Duration latency, TimePoint now);
};
using LatencyEstimates = std::array<LatencyEstimate, num_size_classes>;

// The largest of some sizes in bytes, while sizes come and go. Kept in classes, four to a power of
// two: O(1) however many there are, and what it says is at most a quarter too large.
class SizeCounts {
  public:
    void add(std::uint64_t bytes);
    void remove(std::uint64_t bytes);
    std::uint64_t max() const;  // 0 without sizes

  private:
    static constexpr std::size_t num_classes = 4 * 40, word_bits = 64;  // up to 2^40
    static std::size_t class_of(std::uint64_t bytes);
    std::array<std::uint64_t, (num_classes + word_bits - 1) / word_bits> present_{};  // counts > 0
    std::array<std::uint32_t, num_classes> counts_{};
};

// Hands out sequence ids: +1 mod 2^32, skipping live ones and
// no_sequence_id. An id is live until its answer, or 60 s after its CANCEL.
class SequenceIds {
  public:
    struct Cancelled {
        TimePoint sent_at, expires_at;
        std::uint32_t num_pairs = 0;
        std::uint64_t answer_bytes = 0;
    };
    struct Live {
        std::uint32_t id;
        AttemptId attempt;
        std::uint64_t answer_bytes;  // no answer to it is a longer frame
    };
    explicit SequenceIds(std::uint32_t first) : first_(first), next_(first) {}

    std::uint32_t issue(AttemptId attempt, std::uint64_t answer_bytes = 0,
                        const GroupShape& asked = {});
    AttemptId* find_live(std::uint32_t id);  // null when it is not live
    void release(std::uint32_t id);          // answered
    void cancel(std::uint32_t id, TimePoint sent_at, std::uint32_t num_pairs, TimePoint now);
    const Cancelled* find_cancelled(std::uint32_t id) const;
    void release_cancelled(std::uint32_t id);
    bool was_issued(std::uint32_t id) const;
    void expire(TimePoint now);
    std::size_t num_live() const { return live_.size(); }
    std::size_t num_cancelled() const { return cancelled_.size(); }
    const std::vector<Live>& live() const { return live_; }
    // The same ids with what was asked, for other threads.
    const std::shared_ptr<AskedGroups>& asked() const { return asked_; }
    // The longest answer to any id that is live or cancelled, within a quarter.
    std::uint64_t answer_bytes_max() const { return answer_sizes_.max(); }

  private:
    std::uint32_t first_, next_;
    bool wrapped_ = false;
    std::vector<Live> live_;  // few: the worker's queue depth
    std::shared_ptr<AskedGroups> asked_ = std::make_shared<AskedGroups>();
    std::unordered_map<std::uint32_t, Cancelled> cancelled_;
    // (id, expires_at), oldest first
    std::deque<std::pair<std::uint32_t, TimePoint>> cancel_order_;
    SizeCounts answer_sizes_;  // of both
};

struct Worker : UnitHolder {
    struct Heartbeat {
        std::uint32_t id = 0;
        TimePoint sent_at;
        // published peers: the echo says that these are loaded
        std::vector<std::uint32_t> units;
    };

    Worker(WorkerId worker_id, std::uint32_t first_sequence_id)
        : UnitHolder{.id = worker_id},
          ids(first_sequence_id) {}

    // What every cover asks of every holder stands here, together: with 1,000 workers each line of
    // memory more is one that is waited for.
    WorkerHealth health;
    std::uint32_t queue_depth = 2;
    // of one group; less once it said that a group was too large
    std::uint32_t pairs_max = std::numeric_limits<std::uint32_t>::max();
    std::uint32_t cancels_since_heard = 0;  // attempts cancelled since its last sign of life
    std::uint8_t dtypes = 0;                // bit per Dtype
    bool is_proven = false;                 // its answers are checked at a rate
    bool published_peer = false;
    TimePoint busy_until{};
    // It was overdue and has answered nothing since: asked last until then, for longer each time.
    TimePoint stalls_until{};
    // Work given lately (half as much counts after ten seconds), weighted by its own latency: ties
    // between workers go to the smaller, so that fast ones get more.
    double work = 0;
    TimePoint work_at{};
    // The share of what it could do that it wants to be asked for.
    double power = 1;
    // Scratch: its number in the router, in the pass of that mark.
    std::uint64_t mark = 0;
    std::uint32_t route = 0;
    SequenceIds ids;
    LatencyEstimates estimates;
    std::shared_ptr<RowsHeld> rows_held = std::make_shared<RowsHeld>();  // by its connection

    std::string address;
    std::uint64_t prefix = 0, owner = 0;  // see address_prefix(), address_owner()
    bool authorized = false;
    bool lz4 = false;
    bool x_int8 = false;
    bool on_demand = false;  // holds more than lies in its memory: hints help it
    std::uint32_t next_hint_id = 1;
    bool reports_held = false;                              // its first READY says what it has
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;  // of its answers
    DeviceInfo device;
    std::string nickname, client, worker_key;
    // Of its record: the key, or this connection where it has none; 0 for loopback.
    std::string trust_key;
    std::uint64_t trust_address = 0;
    std::uint64_t pairs_credited_before = 0;  // of its key, by earlier connections
    TimePoint connected_at{}, joined_at{}, heard_at{};

    std::deque<Heartbeat> heartbeats;  // sent, not echoed
    std::uint32_t next_heartbeat_id = 1, heartbeats_missed = 0;

    std::uint64_t frame_limit = 0;  // as it was told to the connection
    std::uint32_t busy_in_row = 0;
    // Its latest answer, and when it had been asked for that: what was sent since is behind it.
    TimePoint answered_at{}, answered_sent_at{};
    // half-open: when it was last sent a duplicate that it has not answered
    std::optional<TimePoint> probed_at;
    Duration stalls_for{};  // see stalls_until

    std::array<std::unique_ptr<LatencyHistogram>, num_size_classes> latency;  // made at first use
    std::uint64_t groups_sent = 0, groups_answered = 0, pairs_answered = 0, timeouts = 0,
                  errors = 0, busy = 0, late = 0, bad_answers = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0;
    RoundSplit split;
    SpeedProfile speed;
    // Of experts on demand: as it told last, what lies in its memory, and how long a group of late
    // waited for what does not; zero until one did.
    SlotFigures slots;
    SlotGuess slot_guess;
    std::unordered_map<std::uint32_t, UnitTier> tiers;  // of units, as their last READY said
    Duration load{};

    WorkerState state() const;
    bool welcomed() const { return health.state() != Health::connecting; }
    // it sent DRAIN: holds nothing any more, ends when its attempts are answered
    bool leaving() const { return health.state() == Health::draining; }
    // Whether rows that are of `dtype` otherwise go to it as int8.
    bool takes_x_int8(Dtype dtype) const { return x_int8 && dtype == Dtype::f16; }
    bool accepts(Dtype dtype) const { return (dtypes >> static_cast<unsigned>(dtype)) & 1; }
    // Whether it is asked before others in that one of the core's turns: in `power` of them, as if
    // by chance, and on every run in the same ones.
    bool is_preferred_in(std::uint64_t pass) const;
    // A published peer works in order: until the echo that
    // says that its units are loaded it answers nothing else.
    bool loading_in_order() const;
    void record_latency(Duration latency, std::uint32_t num_pairs, TimePoint now = {});
    // Newer figures of its experts on demand, none of which is less than before.
    void take_slots(const SlotFigures& told);
    // What a group with this unit waits for, longer than others.
    Duration load_of(std::uint32_t unit) const {
        return slot_guess.holds(unit) ? Duration{} : load;
    }
    // Beyond what is predicted: a guess may be wrong, and loads wait for each other.
    Duration load_slack() const { return std::min<Duration>(4 * load, load_max); }
    // Whatever a worker says: no load is taken to last longer.
    static constexpr Duration load_max = 2s;
    // How long a group of this size will take. Without samples of late what the swarm needs.
    Duration predicted(std::uint32_t num_pairs, const LatencyEstimates& swarm, TimePoint now) const;
    double work_left(TimePoint now) const;
    void decay_work(TimePoint now);
    // Four times what groups of this size take of late, or six deviations more, at least
    // timeout_min; timeout_max while there are few samples. Longer where its answers are.
    Duration attempt_timeout(std::uint32_t num_pairs, const SwarmOptions& options) const;
    double pair_cost_ms(std::uint32_t num_pairs) const;  // p50 per pair, a guess without samples
    std::uint32_t cancels_since_heard_max() const { return 4 * queue_depth + 4; }
    WorkerView view() const;
};

// The holders that the directory names are the pool's workers.
inline Worker& worker_of(UnitHolder* holder) { return static_cast<Worker&>(*holder); }
inline const Worker& worker_of(const UnitHolder* holder) {
    return static_cast<const Worker&>(*holder);
}

class WorkerPool {
  public:
    Worker& add(WorkerId id, std::uint32_t first_sequence_id);
    Worker* find(WorkerId id);
    const Worker* find(WorkerId id) const;
    std::unique_ptr<Worker> take(WorkerId id);
    void set_pairs_max(Worker& worker, std::uint32_t pairs);
    void set_on_demand(Worker& worker, bool on);
    const std::map<WorkerId, std::unique_ptr<Worker>>& all() const { return workers_; }
    Worker* find_key(const std::string& worker_key, WorkerId except);  // welcomed
    // Not below this: a worker that takes less in one group is asked for small rounds only.
    static constexpr std::uint32_t slice_pairs_min = 16;
    std::size_t num_welcomed() const;
    // who take less in one group than the wire allows; who hold more than lies in their memory
    std::uint32_t num_weak() const { return num_weak_; }
    std::uint32_t num_on_demand() const { return num_on_demand_; }
    std::size_t num_welcomed_of(std::uint64_t owner) const;
    // The least work of the others that serve: where `newcomer` starts, so that it is not flooded.
    double least_work(const Worker& newcomer, TimePoint now) const;

  private:
    // ordered: what follows from a walk is the same on every run
    std::map<WorkerId, std::unique_ptr<Worker>> workers_;
    // the same, for those who ask for one: several times a frame
    std::unordered_map<WorkerId, Worker*> index_;
    std::uint32_t num_weak_ = 0, num_on_demand_ = 0;
};

}  // namespace moex
