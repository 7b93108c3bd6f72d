// The dispatch core: who computes which pairs of a round, and when again. Sans-IO: frames
// and `now` go in, actions come out; no socket, no clock, no thread.
// hub/dispatch/swarm_backend runs it for real, tests/sim under a seeded clock and network.
// Owner: one thread or strand at a time.
//
// It speaks the protocol itself (bytes in, bytes out): HELLO to WELCOME,
// ASSIGN, READY, groups, heartbeats, CANCEL, BUSY, ERROR, DRAIN, and the
// five published messages for peers that open with a HEARTBEAT.
//
// Hedging after Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/dispatch/round/round_rows.h"
#include "hub/dispatch/round/worker_answer.h"
#include "hub/dispatch/swarm_types.h"

namespace moex {

struct SwarmState;  // in swarm_state.h, for this room alone

class SwarmCore {
  public:
    explicit SwarmCore(SwarmOptions options);
    ~SwarmCore();

    // Events. Each appends what follows from it to `actions`.
    // `authorized`: the upgrade carried a good token (Bearer):
    // HELLO's token, or a first HEARTBEAT, is then enough.
    WorkerId on_connect(TimePoint now, std::string address, bool authorized,
                        std::vector<SwarmAction>& actions);
    void on_frame(TimePoint now, WorkerId worker, ByteView frame,
                  std::vector<SwarmAction>& actions);
    // The same for an answer that was read elsewhere, by the core's reader of this worker.
    void on_answer(TimePoint now, WorkerId worker, WorkerAnswer answer,
                   std::vector<SwarmAction>& actions);
    void on_disconnect(TimePoint now, WorkerId worker, std::vector<SwarmAction>& actions);
    // Opens a round. Copies what it needs of `batch`.
    // RoundDone follows, at once or later, exactly once.
    RoundId on_round(TimePoint now, const ExpertBatch& batch, std::vector<SwarmAction>& actions);
    // The same where the core's own reader has read the batch's rows already: x may be gone.
    RoundId on_round(TimePoint now, const ExpertBatch& batch, RoundRows rows,
                     std::vector<SwarmAction>& actions);
    // What coming layers may be asked for, the surest first. Advice: no answer depends on it.
    void on_hints(TimePoint now, std::span<const ExpertHint> hints,
                  std::vector<SwarmAction>& actions);
    // no RoundDone follows
    void on_cancel_round(TimePoint now, RoundId round, std::vector<SwarmAction>& actions);
    // The answer to ComputeLocally: y [num_pairs, hidden_size], gates applied.
    void on_local(TimePoint now, RoundId round, std::uint64_t attempt, Result<std::vector<float>> y,
                  std::vector<SwarmAction>& actions);
    // The answer to CheckAnswer.
    void on_judgement(TimePoint now, std::uint64_t sample, const Judgement& judgement,
                      std::vector<SwarmAction>& actions);
    void on_drain(TimePoint now, Duration deadline, std::vector<SwarmAction>& actions);
    // drain: it is given nothing more and lets go of what it holds, each unit once another has it
    // ready; it stays connected, and `use` ends it. pin: what it holds moves to no newcomer. Both
    // hold for its key over reconnects, until this ends. ban: out, with what it said in rounds that
    // are open; its key is closed for as long as the trust's first ban where `closed_for` keeps no
    // book of its own.
    // not_found: no such worker was welcomed. invalid_argument: it has no key that could be banned.
    Status on_order(TimePoint now, WorkerId worker, WorkerOrder order,
                    std::vector<SwarmAction>& actions);
    // Call when `now` has reached next_deadline(); early calls are harmless.
    void on_tick(TimePoint now, std::vector<SwarmAction>& actions);
    std::optional<TimePoint> next_deadline() const;

    // Whether the worker was sent a WELCOME, or let in without one (published peers).
    bool welcomed(WorkerId worker) const;

    SwarmCounters counters() const;
    std::vector<WorkerView> workers() const;
    std::optional<WorkerView> worker(WorkerId id) const;
    Coverage coverage() const;
    // [num_layers * num_experts], active and ready workers; 0 for dense layers
    std::vector<std::uint16_t> replicas() const;
    // As many: of these workers' places for it the nearest to where it is computed, as each said
    // when it became ready; nothing where nobody has it. Who says nothing has all of it there.
    std::vector<std::optional<UnitTier>> tiers() const;

    // Whether a worker is there that has a use for hints.
    bool wants_hints() const;
    std::size_t num_rounds_open() const;
    std::size_t in_flight(WorkerId worker) const;  // groups
    // What the core holds to be true of its own state and is not; empty unless the core is wrong.
    // `whole`: of every worker and unit, else of what is under way. Costs time: for tests.
    std::vector<std::string> check_invariants(bool whole) const;

    // Test and operator switches, at run time.
    void set_hedge(const HedgePolicy& policy);  // for rounds that open later
    const SwarmOptions& options() const;        // as they stand now
    // For answers of this worker, and for rows, that another thread reads. Both may outlive the
    // core.
    AnswerReader answer_reader(WorkerId worker) const;
    const RowReader& row_reader() const;
    void set_local_fallback(bool on);

  private:
    std::unique_ptr<SwarmState> state_;
};

}  // namespace moex
