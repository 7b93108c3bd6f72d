// The hub's record of each worker: its session, the units it holds, its attempts, its latency and
// its honesty. This file keeps the state and its rules. swarm_protocol builds frames, and
// swarm_core with its parts decides about rounds.
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

// Latency depends on the number of pairs in a group, so there is one histogram for each size class.
inline constexpr std::size_t num_size_classes = 4;
std::size_t size_class_of(std::uint32_t num_pairs);  // classes: up to 8, 64 or 512 pairs, and more

// Latency of the groups in a size class: the mean and the mean deviation of recent samples. A
// sample counts as at most four times the usual latency, so that one stalled group does not move
// the mean far. Source: Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988.
struct LatencyEstimate {
    std::uint32_t num_samples = 0;
    double mean_ms = 0, deviation_ms = 0;
    TimePoint at{};

    void record(Duration latency, TimePoint now);
};
using LatencyEstimates = std::array<LatencyEstimate, num_size_classes>;

// Tracks the maximum of a multiset of sizes in bytes, under insertions and removals. Sizes are
// counted in classes, four per power of two. Every operation is O(1), and max() is at most a
// quarter too large.
class SizeCounts {
  public:
    void add(std::uint64_t bytes);
    void remove(std::uint64_t bytes);
    std::uint64_t max() const;  // the largest size, in bytes; 0 when the set is empty

  private:
    static constexpr std::size_t num_classes = 4 * 40, word_bits = 64;  // sizes up to 2^40 bytes
    static std::size_t class_of(std::uint64_t bytes);
    // one bit per size class: set while its count is not 0
    std::array<std::uint64_t, (num_classes + word_bits - 1) / word_bits> present_{};
    std::array<std::uint32_t, num_classes> counts_{};
};

// Hands out sequence ids: each is the previous one + 1 mod 2^32, except that live ids and
// no_sequence_id are skipped. An id is live until its answer arrives, or until 60 s after its
// CANCEL.
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
        std::uint64_t answer_bytes;  // upper bound on the length of the request's answer frame
    };
    explicit SequenceIds(std::uint32_t first) : first_(first), next_(first) {}

    std::uint32_t issue(AttemptId attempt, std::uint64_t answer_bytes = 0,
                        const GroupShape& asked = {});
    AttemptId* find_live(std::uint32_t id);  // returns null when the id is not live
    void release(std::uint32_t id);          // call it when the answer has arrived
    void cancel(std::uint32_t id, TimePoint sent_at, std::uint32_t num_pairs, TimePoint now);
    const Cancelled* find_cancelled(std::uint32_t id) const;
    void release_cancelled(std::uint32_t id);
    bool was_issued(std::uint32_t id) const;
    void expire(TimePoint now);
    std::size_t num_live() const { return live_.size(); }
    std::size_t num_cancelled() const { return cancelled_.size(); }
    const std::vector<Live>& live() const { return live_; }
    // The live ids, each with the shape of its request. The threads that read frames look ids up in
    // it.
    const std::shared_ptr<AskedGroups>& asked() const { return asked_; }
    // Upper bound on the length of the answer to any live or cancelled id; at most a quarter too
    // large.
    std::uint64_t answer_bytes_max() const { return answer_sizes_.max(); }

  private:
    std::uint32_t first_, next_;
    bool wrapped_ = false;
    std::vector<Live> live_;  // a short list: at most as many as the worker's queue depth
    std::shared_ptr<AskedGroups> asked_ = std::make_shared<AskedGroups>();
    std::unordered_map<std::uint32_t, Cancelled> cancelled_;
    // (id, expires_at) of the cancelled ids, oldest first
    std::deque<std::pair<std::uint32_t, TimePoint>> cancel_order_;
    SizeCounts answer_sizes_;  // sizes of the answers to live and cancelled ids together
};

struct Worker : UnitHolder {
    struct Heartbeat {
        std::uint32_t id = 0;
        TimePoint sent_at;
        // units that the answer to this heartbeat confirms as loaded; of published peers only
        std::vector<std::uint32_t> units;
    };

    Worker(WorkerId worker_id, std::uint32_t first_sequence_id)
        : UnitHolder{.id = worker_id},
          ids(first_sequence_id) {}

    // Fields that every cover reads for every holder come first, close together: with 1,000 workers
    // each additional cache line costs a wait for memory.
    WorkerHealth health;
    std::uint32_t queue_depth = 2;
    // most pairs in one group; lowered when the worker reports that a group was too large
    std::uint32_t pairs_max = std::numeric_limits<std::uint32_t>::max();
    std::uint32_t cancels_since_heard = 0;  // attempts cancelled since the worker's last frame
    std::uint8_t dtypes = 0;                // bit set of accepted dtypes, one bit per Dtype
    bool is_proven = false;  // the worker is trusted: only a sample of its answers is checked
    bool published_peer = false;
    TimePoint busy_until{};
    // Set after the worker was overdue and has answered nothing since. Until this time the router
    // prefers all other workers. The length doubles with each stall.
    TimePoint stalls_until{};
    // Work sent to the worker recently, weighted by the worker's own latency, and halved every ten
    // seconds. Between otherwise equal workers the router prefers the smaller value, so that fast
    // workers get more work.
    double work = 0;
    TimePoint work_at{};
    // The share of its capacity that the worker wants the hub to use, 0 to 1, from its POWER frame.
    double power = 1;
    // Scratch: `route` is the worker's number in the router, and is valid in the router's pass
    // number `mark`.
    std::uint64_t mark = 0;
    std::uint32_t route = 0;
    SequenceIds ids;
    LatencyEstimates estimates;
    // Measured times and verdicts of the rule that compares this worker with the hub. Scratch:
    // `is_worth_asking` is valid in the router's pass number `judged_in`, and `pairs_open` is the
    // number of open pairs of that pass with a unit that the worker has ready.
    WorkerWorth worth;
    std::uint64_t judged_in = 0;
    std::uint32_t pairs_open = 0;
    bool is_worth_asking = false;
    // encoded rows that frames of this connection keep alive, in bytes
    std::shared_ptr<RowsHeld> rows_held = std::make_shared<RowsHeld>();

    std::string address;
    std::uint64_t prefix = 0, owner = 0;  // see address_prefix(), address_owner()
    bool authorized = false;
    bool lz4 = false;
    bool x_int8 = false;
    // the worker holds more units than fit its memory, so it can make use of hints
    bool on_demand = false;
    std::uint32_t next_hint_id = 1;
    bool reads_hubs = false;    // the worker reads HUBS, and moves to another hub
    bool reports_held = false;  // the worker's first READY lists the units that it already has
    WorkerArithmetic arithmetic = WorkerArithmetic::exact;  // arithmetic that the worker declared
    DeviceInfo device;
    std::string nickname, client, worker_key;
    // Key of the worker's trust record; for a worker without a key, a name for this connection.
    // `trust_address` is 0 for loopback.
    std::string trust_key;
    std::uint64_t trust_address = 0;
    // pairs that earlier connections credited to this worker's key
    std::uint64_t pairs_credited_before = 0;
    TimePoint connected_at{}, joined_at{}, heard_at{};

    std::deque<Heartbeat> heartbeats;  // heartbeats sent and not yet echoed
    std::uint32_t next_heartbeat_id = 1, heartbeats_missed = 0;

    std::uint64_t frame_limit = 0;            // frame limit last sent to the connection, in bytes
    std::uint64_t span_answer_bytes_max = 0;  // largest answer of any span that it was assigned
    std::uint32_t busy_in_row = 0;
    // When the worker's latest answer arrived, and when that request had been sent. Requests that
    // were sent later are queued behind it in the worker.
    TimePoint answered_at{}, answered_sent_at{};
    // for a half-open worker: when it was sent the probe that it has not answered yet
    std::optional<TimePoint> probed_at;
    Duration stalls_for{};      // length of the latest stall, see stalls_until
    TimePoint sign_asked_at{};  // when a step was late, see SwarmSessions::ask_for_sign()

    // histograms per size class, each created at first use
    std::array<std::unique_ptr<LatencyHistogram>, num_size_classes> latency;
    std::uint64_t groups_sent = 0, groups_answered = 0, pairs_answered = 0, timeouts = 0,
                  errors = 0, busy = 0, late = 0, bad_answers = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0;
    RoundSplit split;
    SpeedProfile speed;
    // For a worker that loads experts on demand. `slots`: the counters that it reported most
    // recently. `slot_guess`: the estimate of what its memory holds. `load`: how long a recent
    // group waited for an expert to load; zero until a group waited.
    SlotFigures slots;
    SlotGuess slot_guess;
    // place of each unit as its latest READY reported it
    std::unordered_map<std::uint32_t, UnitTier> tiers;
    Duration load{};

    WorkerState state() const;
    bool welcomed() const { return health.state() != Health::connecting; }
    // The worker sent DRAIN. It holds no unit any more, and the connection ends when its attempts
    // are answered.
    bool leaving() const { return health.state() == Health::draining; }
    // The worker sent DRAIN, and serves until other workers have the units that only it has ready.
    bool hands_over = false;
    // Returns true if rows that would be sent as `dtype` are sent to this worker as int8.
    bool takes_x_int8(Dtype dtype) const { return x_int8 && dtype == Dtype::f16; }
    bool accepts(Dtype dtype) const { return (dtypes >> static_cast<unsigned>(dtype)) & 1; }
    // Returns true if the router prefers this worker in pass number `pass`. A hash chooses the
    // share `power` of all passes, so that every run chooses the same passes.
    bool is_preferred_in(std::uint64_t pass) const;
    // Returns true while a published peer loads units. It works in order: it answers nothing else
    // until it has sent the echo which confirms that its units are loaded.
    bool loading_in_order() const;
    void record_latency(Duration latency, std::uint32_t num_pairs, TimePoint now = {});
    // Stores new counters of a worker that loads experts on demand. Requires that no counter is
    // less than its previous value.
    void take_slots(const SlotFigures& reported);
    // Predicted extra time of a group that uses this unit: the time until the unit is loaded.
    Duration load_of(std::uint32_t unit) const {
        return slot_guess.holds(unit) ? Duration{} : load;
    }
    // Extra time for an attempt beyond its predicted time: the estimate of the worker's slots may
    // be wrong, and the loads of several experts in the worker wait for each other.
    Duration load_slack() const { return std::min<Duration>(4 * load, load_max); }
    // Upper bound on the load time that the hub assumes, whatever the worker reports.
    static constexpr Duration load_max = 2s;
    // Predicted latency of a group with `num_pairs` pairs. Without recent samples of this worker it
    // is the mean of the swarm.
    Duration predicted(std::uint32_t num_pairs, const LatencyEstimates& swarm, TimePoint now) const;
    double work_left(TimePoint now) const;
    void decay_work(TimePoint now);
    // Timeout of an attempt: four times the recent mean for groups of this size, or the mean plus
    // six deviations if that is more, at least timeout_min. It is timeout_max while there are few
    // samples. It exceeds timeout_max for a worker that usually takes longer.
    Duration attempt_timeout(std::uint32_t num_pairs, const SwarmOptions& options) const;
    // Median time per pair in ms; a fixed guess while there are no samples.
    double pair_cost_ms(std::uint32_t num_pairs) const;
    std::uint32_t cancels_since_heard_max() const { return 4 * queue_depth + 4; }
    WorkerView view() const;
};

// These casts are valid because every holder in the unit directory is a Worker of the pool.
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
    // searches among welcomed workers
    Worker* find_key(const std::string& worker_key, WorkerId except);
    // Least number of pairs in a slice. A worker that takes fewer pairs than this in one group is
    // used for small rounds only.
    static constexpr std::uint32_t slice_pairs_min = 16;
    std::size_t num_welcomed() const;
    // num_weak: workers that take fewer pairs in one group than the wire allows. num_on_demand:
    // workers that hold more units than fit their memory.
    std::uint32_t num_weak() const { return num_weak_; }
    std::uint32_t num_on_demand() const { return num_on_demand_; }
    std::size_t num_welcomed_of(std::uint64_t owner) const;
    // The least value of `work` among the other serving workers. `newcomer` starts with this value,
    // so that it is not flooded with requests.
    double least_work(const Worker& newcomer, TimePoint now) const;

  private:
    // ordered by id, so that an iteration gives the same result on every run
    std::map<WorkerId, std::unique_ptr<Worker>> workers_;
    // index of `workers_` by id, for lookups that happen several times per frame
    std::unordered_map<WorkerId, Worker*> index_;
    std::uint32_t num_weak_ = 0, num_on_demand_ = 0;
};

}  // namespace moex
