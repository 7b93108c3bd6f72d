// Simulates a swarm without sockets and without a real clock. The dispatch core and the codec are
// the real ones; clock, network and workers are simulated from a seed. Workers stall, lie, refuse
// and leave. The same seed gives the same run, and equal runs have the same event_hash().
//
// An expert is a cheap formula of (layer, expert, x) (sim_expert), so the simulator can compare the
// answer of every round with the right sum.
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
enum class SpanLie : std::uint8_t;

// Runs the dispatch core against simulated workers and checks its invariants.
class SimSwarm {
  public:
    explicit SimSwarm(SimOptions options);
    ~SimSwarm();

    // ---- The following functions are the actions that a test takes.
    // Connects a worker, which sends HELLO. `key` is its worker_key; "" gives it a new key. Units
    // that were loaded under a key are cached for the next connection with this key.
    WorkerId join(Peer peer = Peer::ours, std::string address = "10.0.0.1", std::string key = {});
    WorkerId join_as(const WorkerProfile& profile, std::string address, std::string key = {});
    // Connects a worker that sends no frame.
    WorkerId connect(bool authorized, std::string address = "10.0.0.1");
    // Delivers `frame` from the worker to the hub, without latency.
    void say(WorkerId worker, Bytes frame);
    void leave(WorkerId worker);
    void slow_down(WorkerId worker, Duration compute);
    // Sets the time of a call to the local backend.
    void slow_down_hub(Duration compute);
    void set_profile(WorkerId worker, const WorkerProfile& profile);
    // Stops all reads and writes of the workers with an address that begins with `address_begin`,
    // or resumes them if `dark` is false.
    void go_dark(const std::string& address_begin, bool dark = true);
    // Advances the clock by `leap` without running events. Events that become due in the leap
    // run next.
    void jump_clock(Duration leap);
    // Makes the worker read nothing and echo no heartbeat. With `stalled` false, ends that state.
    void stall(WorkerId worker, bool stalled = true);
    // Makes the worker echo heartbeats but answer no call. With `stalled` false, ends that state.
    void stall_compute(WorkerId worker, bool stalled = true);
    // Makes the worker accept ASSIGN and load nothing. With `stalled` false, ends that state.
    void stall_loading(WorkerId worker, bool stalled = true);
    // Deletes all units that the worker had reported READY, without a report to the hub.
    void forget_weights(WorkerId worker);
    // Sets the download time per unit of a published peer. The peer does nothing else while it
    // downloads.
    void slow_download(WorkerId worker, Duration per_unit);
    // Makes the worker refuse groups of more than `num_pairs` pairs with the error
    // num_tokens_range.
    void take_at_most(WorkerId worker, std::uint32_t num_pairs);
    // Changes the worker's memory limit. The worker drops the units that no longer fit and sends
    // BUDGET.
    void resize(WorkerId worker, std::uint32_t budget_experts);
    // Makes the worker's answers exceed the range of f16.
    void overflow_f16(WorkerId worker);
    void lie(WorkerId worker, Lie lie);
    // Makes the worker answer calls with BUSY. 0: it answers normally again.
    void answer_busy(WorkerId worker, std::uint32_t retry_ms);
    // Makes the worker answer calls with ERROR. "": it answers normally again.
    void answer_error(WorkerId worker, std::string code, bool fatal = false);
    RoundId submit(RoundSpec spec = {});
    void cancel(RoundId round);
    // Passes the engine's predictions to the core.
    void hint(const std::vector<ExpertHint>& hints);
    // Deletes the outcome of a round that has ended.
    void forget(RoundId round);
    void drain(Duration deadline);
    Status order(WorkerId worker, WorkerOrder order);  // an order of the operator
    void run_for(Duration time);
    // Runs until no round is open and no message is in flight, or until `limit` has passed. Returns
    // true if every round has ended.
    bool run_until_idle(Duration limit = 60s);
    // Runs until the round has ended, or until `limit` has passed. Returns true if the round
    // succeeded.
    bool run_until_answered(RoundId round, Duration limit = 60s);
    // Runs until every worker has units and all assigned units are ready, or until `limit` has
    // passed. Returns true if all units are ready.
    bool run_until_ready(Duration limit = 60s);

    // Makes the worker lie about a share of the layers that it computes, or answer that it failed.
    void lie_in_spans(WorkerId worker, SpanLie lie, double share = 1);
    void fail_spans(WorkerId worker, bool fails = true);
    // For the other parts of the simulator.
    SimState& state() { return *state_; }

    // ---- The following functions return what happened in the simulation.
    SwarmCore& core();
    TimePoint now() const;
    const RoundOutcome& outcome(RoundId round) const;
    // Returns the ids of the workers that answered pairs of the round; 0 is the local backend.
    std::vector<WorkerId> answered_by(RoundId round) const;
    std::optional<CloseCode> closed_with(WorkerId worker) const;
    // Returns the length, in bytes, of the longest frame that the hub accepts from this worker now.
    std::uint64_t frame_limit(WorkerId worker) const;
    // Returns how many bytes of weights the workers downloaded in all; cached units do not count.
    std::uint64_t bytes_downloaded() const;
    // Returns how many experts were requested from the worker while they were not in its memory.
    std::uint64_t experts_missed(WorkerId worker) const;
    // Returns the frames that the hub sent to the worker. They are kept only with
    // `SimOptions::log`.
    std::vector<Bytes> frames_to(WorkerId worker) const;
    std::vector<WorkerId> workers_alive() const;
    std::uint64_t event_hash() const;
    std::uint64_t num_events() const;
    std::uint64_t num_gathered() const;  // frames that shared the encoded rows of their round
    // The largest number of groups that were in flight to one worker at the same time.
    std::size_t frames_at_once_max() const;
    // descriptions of broken invariants; a test expects none
    const std::vector<std::string>& violations() const;
    const std::vector<std::string>& log() const;
    const std::vector<WorkerEvent>& worker_events() const;

  private:
    std::unique_ptr<SimState> state_;
};

// The report on one whole run under faults, for moex-sim and the seed tests.
struct SimReport {
    std::uint64_t event_hash = 0, num_events = 0;
    std::uint64_t rounds = 0, rounds_ok = 0, rounds_failed = 0;
    std::uint32_t workers_left = 0;
    std::uint64_t frames_gathered = 0;  // frames that shared the encoded rows of their round
    SwarmCounters counters;
    std::vector<std::string> violations;
    std::vector<std::string> log;
};
struct SimRun {
    std::uint64_t seed = 1;
    std::uint32_t num_workers = 12, num_rounds = 200;
    Duration length = 60s;  // simulated time over which the rounds are spread
    Faults faults;
    bool log = false;
};
SimReport run_simulation(const SimRun& run);

}  // namespace moex::sim
