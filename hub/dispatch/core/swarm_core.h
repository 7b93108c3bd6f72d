// The dispatch core decides which worker computes which pairs of a round, and when a pair is sent
// again. It is sans-IO: frames and `now` go in, actions come out. It has no socket, no clock and no
// thread. hub/dispatch/core/swarm_backend runs it in the hub; tests/sim runs it under a seeded
// clock and network. Owner: one thread or strand at a time.
//
// The core speaks the protocol itself, bytes in and bytes out: HELLO to WELCOME, ASSIGN, READY,
// groups, heartbeats, CANCEL, BUSY, ERROR, DRAIN, and the five published messages for peers whose
// first frame is a HEARTBEAT.
//
// Source of hedging: Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hub/dispatch/round/round_rows.h"
#include "hub/dispatch/round/worker_answer.h"
#include "hub/dispatch/swarm_types.h"

namespace moex {

class SpanBoard;
struct SwarmState;  // defined in swarm_state.h, which is private to this room

class SwarmCore {
  public:
    explicit SwarmCore(SwarmOptions options);
    ~SwarmCore();

    // Events. Each call appends the actions that follow to `actions`. `authorized` is true if the
    // HTTP upgrade carried a valid bearer token. Such a connection needs no token in its HELLO, and
    // may begin with a HEARTBEAT.
    WorkerId on_connect(TimePoint now, std::string address, bool authorized,
                        std::vector<SwarmAction>& actions);
    void on_frame(TimePoint now, WorkerId worker, ByteView frame,
                  std::vector<SwarmAction>& actions);
    // Does the same as on_frame(), for an answer that another thread has already read with
    // answer_reader(worker).
    void on_answer(TimePoint now, WorkerId worker, WorkerAnswer answer,
                   std::vector<SwarmAction>& actions);
    void on_disconnect(TimePoint now, WorkerId worker, std::vector<SwarmAction>& actions);
    // Opens a round and copies what it needs from `batch`. Exactly one RoundDone action follows, in
    // this call or in a later event.
    RoundId on_round(TimePoint now, const ExpertBatch& batch, std::vector<SwarmAction>& actions);
    // Opens a round after row_reader() has read the rows of the batch. The x of the batch may be
    // gone.
    RoundId on_round(TimePoint now, const ExpertBatch& batch, RoundRows rows,
                     std::vector<SwarmAction>& actions);
    // Passes the experts that the next layers are predicted to need, the most confident prediction
    // first. Hints are advice: no answer depends on them.
    void on_hints(TimePoint now, std::span<const ExpertHint> hints,
                  std::vector<SwarmAction>& actions);
    // Ends the round. No RoundDone action follows.
    void on_cancel_round(TimePoint now, RoundId round, std::vector<SwarmAction>& actions);
    // Sends a frame to the holder of a span. `step` is not 0 if an answer follows, which
    // span_board() receives.
    void on_span_frame(TimePoint now, std::uint32_t span, std::uint32_t step, Bytes frame,
                       std::vector<SwarmAction>& actions);
    // The holder of a span gave a wrong answer.
    void on_span_lie(TimePoint now, std::uint32_t span, const std::string& why,
                     std::vector<SwarmAction>& actions);
    // The answers of the holder differ too often from the hub's, as honest ones may.
    void on_span_set_aside(TimePoint now, std::uint32_t span, const std::string& why,
                           std::vector<SwarmAction>& actions);
    // The holder of a span did not answer a step in time that was sent at `sent_at`.
    void on_span_late(TimePoint now, std::uint32_t span, TimePoint sent_at,
                      std::vector<SwarmAction>& actions);
    // Passes the reply to the action ComputeLocally: y [num_pairs, hidden_size], with gates
    // applied.
    void on_local(TimePoint now, RoundId round, std::uint64_t attempt, Result<std::vector<float>> y,
                  std::vector<SwarmAction>& actions);
    // Reports that the local backend took `took` for a call of `num_pairs` pairs that only measures
    // it; Duration::max() if the call failed. Passes the reply to a ComputeLocally with attempt 0.
    void on_local_measured(TimePoint now, std::uint32_t num_pairs, Duration took);
    // Passes the reply to the action CheckAnswer.
    void on_judgement(TimePoint now, std::uint64_t sample, const Judgement& judgement,
                      std::vector<SwarmAction>& actions);
    void on_drain(TimePoint now, Duration deadline, std::vector<SwarmAction>& actions);
    // Carries out an operator's order for one worker.
    // - drain: the worker gets no more units and releases the units that it holds, each one once
    //   another worker has it ready. The connection stays open, and the order `use` ends the drain.
    // - pin: no unit moves from this worker to a newcomer. Both drain and pin hold for the worker's
    //   key over reconnects, until they are ended.
    // - ban: the connection ends, and the worker's answers in open rounds are dropped. The worker's
    //   key may not join for as long as a first ban lasts, unless the option `closed_for` keeps
    //   bans itself. Returns not_found if no such worker was welcomed, invalid_argument if the
    //   worker has no key to ban.
    Status on_order(TimePoint now, WorkerId worker, WorkerOrder order,
                    std::vector<SwarmAction>& actions);
    // Sends the worker HUBS: the other hubs of the fleet, or the request to join one. The worker
    // drains by itself. Returns not_found if no such worker was welcomed, unsupported if it does
    // not read HUBS.
    Status on_hubs(TimePoint now, WorkerId worker, const HubsChange& change,
                   std::vector<SwarmAction>& actions);
    // The record of a worker key's answers (answer_trust.h), for the hubs that the worker joins
    // later; a hub that it joins sets the record.
    TrustRecord trust_record(std::string_view worker_key) const;
    void set_trust_record(TimePoint now, std::string_view worker_key, const TrustRecord& record);
    // The driver calls this when `now` has reached next_deadline(). An early call is harmless.
    void on_tick(TimePoint now, std::vector<SwarmAction>& actions);
    std::optional<TimePoint> next_deadline() const;

    // Returns true if the worker was sent a WELCOME, or is a published peer that was admitted
    // without one.
    bool welcomed(WorkerId worker) const;

    SwarmCounters counters() const;
    std::vector<WorkerView> workers() const;
    std::optional<WorkerView> worker(WorkerId id) const;
    Coverage coverage() const;
    // Counts copies without those of the workers in `leaving`. O(copies).
    UnitCopies copies(const std::set<WorkerId>& leaving = {}) const;
    // [num_layers * num_experts]: the number of active workers that have the unit ready; 0 in dense
    // layers.
    std::vector<std::uint16_t> replicas() const;
    // [num_layers * num_experts]: the nearest place (slot, memory, store) at which any active
    // worker has the unit, as reported in READY. nullopt where no worker has the unit. A worker
    // that reports no places is counted as if all its units were in slots.
    std::vector<std::optional<UnitTier>> tiers() const;

    // Returns true if a connected worker can make use of hints.
    bool wants_hints() const;
    std::size_t num_rounds_open() const;
    std::size_t in_flight(WorkerId worker) const;  // number of groups in flight to the worker
    // Returns the violated invariants of the core's state; empty unless the core has a bug. With
    // `whole` it checks every worker and unit, otherwise only rounds and attempts in flight. The
    // check is slow and meant for tests.
    std::vector<std::string> check_invariants(bool whole) const;

    // Switches that tests and the operator may change at run time.
    void set_hedge(const HedgePolicy& policy);  // applies to rounds that open later
    const SwarmOptions& options() const;        // the options that are in force now
    // Return readers for other threads: answer_reader() reads the answers of this worker,
    // row_reader() the rows of a batch. The readers may outlive the core.
    AnswerReader answer_reader(WorkerId worker) const;
    const RowReader& row_reader() const;
    std::shared_ptr<SpanBoard> span_board() const;
    void set_local_fallback(bool on);

  private:
    std::unique_ptr<SwarmState> state_;
};

}  // namespace moex
