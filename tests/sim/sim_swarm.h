// A swarm without sockets or clock: the real dispatch core and the real codec under
// a seeded clock and network, with workers that stall, lie, refuse and leave. The
// same seed gives the same run; event_hash() says whether two runs were the same.
//
// An expert is a cheap formula of (layer, expert, x), so that
// every round's answer can be checked against the sum it must be.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/dispatch/core/swarm_core.h"
#include "tests/sim/sim_types.h"

namespace moex::sim {

struct SimState;

class SimSwarm {
  public:
    explicit SimSwarm(SimOptions options);
    ~SimSwarm();

    // ---- verbs
    // Connects and says hello; `key` is its worker_key, "" for one of its own. What was loaded
    // under a key is cached for the next connection with it.
    WorkerId join(Peer peer = Peer::ours, std::string address = "10.0.0.1", std::string key = {});
    WorkerId join_as(const WorkerProfile& profile, std::string address, std::string key = {});
    // connects and says nothing
    WorkerId connect(bool authorized, std::string address = "10.0.0.1");
    // from the worker, at once
    void say(WorkerId worker, Bytes frame);
    void leave(WorkerId worker);
    void slow_down(WorkerId worker, Duration compute);
    void set_profile(WorkerId worker, const WorkerProfile& profile);
    // Everybody whose address begins so neither reads nor writes, or does again.
    void go_dark(const std::string& address_begin, bool dark = true);
    // The hub's clock leaps: what was due meanwhile comes at once.
    void jump_clock(Duration leap);
    // reads nothing, echoes nothing
    void stall(WorkerId worker, bool stalled = true);
    // echoes heartbeats, answers no call
    void stall_compute(WorkerId worker, bool stalled = true);
    // takes its ASSIGN and loads nothing, or goes on
    void stall_loading(WorkerId worker, bool stalled = true);
    // holds nothing of what it said READY for
    void forget_weights(WorkerId worker);
    // of a published peer, which does nothing else meanwhile
    void slow_download(WorkerId worker, Duration per_unit);
    // larger groups are answered num_tokens_range
    void take_at_most(WorkerId worker, std::uint32_t num_pairs);
    // moves its memory limit: lets go of what is beyond it, and says so
    void resize(WorkerId worker, std::uint32_t budget_experts);
    // its answers are beyond what f16 carries
    void overflow_f16(WorkerId worker);
    void lie(WorkerId worker, Lie lie);
    void answer_busy(WorkerId worker, std::uint32_t retry_ms);                 // 0: no more
    void answer_error(WorkerId worker, std::string code, bool fatal = false);  // "": no more
    RoundId submit(RoundSpec spec = {});
    void cancel(RoundId round);
    // What the engine foresees.
    void hint(const std::vector<ExpertHint>& hints);
    // what is known of a round that has ended
    void forget(RoundId round);
    void drain(Duration deadline);
    Status order(WorkerId worker, WorkerOrder order);  // its host's
    void run_for(Duration time);
    // Until no round is open and no message in flight, or
    // `limit` has passed. True when every round ended.
    bool run_until_idle(Duration limit = 60s);
    // Until the round has ended; true when it ended well.
    bool run_until_answered(RoundId round, Duration limit = 60s);
    // Until all that was assigned is ready.
    bool run_until_ready(Duration limit = 60s);

    // ---- what happened
    SwarmCore& core();
    TimePoint now() const;
    const RoundOutcome& outcome(RoundId round) const;
    // 0 stands for the local backend
    std::vector<WorkerId> answered_by(RoundId round) const;
    std::optional<CloseCode> closed_with(WorkerId worker) const;
    // the longest frame that the hub reads of it now
    std::uint64_t frame_limit(WorkerId worker) const;
    // over the network, by all workers: what was cached counts for nothing
    std::uint64_t bytes_downloaded() const;
    // asked of it while they were not in its memory
    std::uint64_t experts_missed(WorkerId worker) const;
    // what the hub sent, while `log`
    std::vector<Bytes> frames_to(WorkerId worker) const;
    std::vector<WorkerId> workers_alive() const;
    std::uint64_t event_hash() const;
    std::uint64_t num_events() const;
    std::uint64_t num_gathered() const;  // frames that shared their round's rows
    // most groups in flight at one worker
    std::size_t frames_at_once_max() const;
    // broken invariants; must stay empty
    const std::vector<std::string>& violations() const;
    const std::vector<std::string>& log() const;
    const std::vector<WorkerEvent>& worker_events() const;

  private:
    std::unique_ptr<SimState> state_;
};

// One whole run under faults, as moex-sim and the seed tests do it.
struct SimReport {
    std::uint64_t event_hash = 0, num_events = 0;
    std::uint64_t rounds = 0, rounds_ok = 0, rounds_failed = 0;
    std::uint32_t workers_left = 0;
    std::uint64_t frames_gathered = 0;  // of their round's rows
    SwarmCounters counters;
    std::vector<std::string> violations;
    std::vector<std::string> log;
};
struct SimRun {
    std::uint64_t seed = 1;
    std::uint32_t num_workers = 12, num_rounds = 200;
    Duration length = 60s;  // over which the rounds are spread
    Faults faults;
    bool log = false;
};
SimReport run_simulation(const SimRun& run);

}  // namespace moex::sim
