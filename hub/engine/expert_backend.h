// The engine's only interface to the computation of experts. The engine does not know whether a
// browser tab or a local loop computes the experts of a layer. There are two implementations:
// LocalExperts (hub/engine/local_experts.h) and SwarmBackend (hub/dispatch/core/swarm_backend.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "hub/base/clock.h"
#include "protocol/half.h"
#include "protocol/result.h"
#include "protocol/tensor_format.h"

namespace moex {

// A prediction that a coming layer of the step will request this unit (one expert of one layer). A
// backend may ignore the hint.
struct ExpertHint {
    std::uint16_t layer = 0, expert = 0;
    std::uint16_t deadline_ms = 0;
    std::uint8_t confidence = 0;
};

// Latency budget of a row that need not wait for the answers of all its experts. An answer that has
// not arrived `wait` after submit() may be left out of the row's sum, for at most `pairs_max` of
// the row's experts.
struct RowPatience {
    std::uint32_t row = 0;  // index of the row in the ExpertBatch
    Duration wait{};
    std::uint32_t pairs_max = 0;
};

// The input and output of a round: one layer for one micro-batch. All spans stay valid until the
// round's wait() has returned.
struct ExpertBatch {
    std::uint32_t layer = 0;
    std::uint32_t num_tokens = 0;
    std::uint32_t hidden_size = 0;
    std::uint32_t top_k = 0;
    std::span<const float> x;  // [num_tokens, hidden_size], normalised input of the experts
    // [num_tokens, top_k], ids of experts; distinct within a row
    std::span<const std::uint16_t> expert_ids;
    std::span<const float> expert_weights;  // [num_tokens, top_k]
    // [num_tokens, hidden_size], output: the weighted sum over each row's experts
    std::span<float> y;
    // Latency budgets of rows, in ascending order of rows. A row without a latency budget waits for
    // all of its experts' answers. A backend that computes on this machine computes every answer.
    std::span<const RowPatience> patience = {};
    // The hub computes the layer to check a worker that computes it whole (span_backend.h). A
    // backend that has the weights on this machine computes here, because that takes no round trip.
    bool is_check = false;
};

// How the answers of one row's experts were obtained: numbers of (row, expert) pairs.
struct RowProvenance {
    std::uint16_t pairs_remote = 0, pairs_local = 0;
    std::uint16_t pairs_hedged = 0;  // pairs that were sent to workers in more than one attempt
    // Numbers of remote pairs with checked answers. pairs_verified: the answer was computed
    // again and found correct before it was used. pairs_proven: the worker has a record of correct
    // answers, and only a sample of its answers is checked. The remaining pairs of pairs_remote
    // could not be checked.
    std::uint16_t pairs_verified = 0, pairs_proven = 0;
    std::uint16_t pairs_late = 0;  // pairs without an answer when the row's latency budget ended
};
// A (row, expert) pair without an answer at the end of the row's latency budget. The sum y contains
// nothing from this pair.
struct LatePair {
    std::uint32_t row = 0;
    std::uint16_t expert = 0;
};
// A worker that computed at least one (row, expert) pair of row `row`.
struct RowWorker {
    std::uint32_t row = 0;
    std::uint64_t worker = 0;
};
struct ExpertAnswer {
    std::vector<RowProvenance> rows;  // [num_tokens]
    // distinct ids of the workers that contributed to this round
    std::vector<std::uint64_t> workers;
    // (row, worker) pairs in any order; a pair may be listed twice
    std::vector<RowWorker> row_workers;
    std::vector<LatePair> late;  // missing answers; only for rows with a latency budget
    Duration waited{};           // time from submit() until y was complete
};

// A round in flight. Destroying this object without calling wait() cancels the round.
class ExpertRound {
  public:
    virtual ~ExpertRound() = default;
    // Blocks the engine's thread until y is written. Must be called only once. Errors:
    // `unavailable`: no worker answers and there are no local weights; `timeout`: the message gives
    // the cause; `num_tokens_range`: the workers accept fewer tokens at a time than was planned,
    // and the same batch will be cut finer when it is submitted again; `cancelled`: `stop` was
    // requested before the round was complete.
    virtual Result<ExpertAnswer> wait(std::stop_token stop = {}) = 0;
};

class ExpertBackend {
  public:
    virtual ~ExpertBackend() = default;
    // Starts a round. Several rounds may be in flight.
    virtual std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) = 0;
    virtual const char* name() const = 0;  // "local", "swarm"
    // Returns true if a round makes progress while the engine's thread computes something else.
    virtual bool works_elsewhere() const { return false; }
    // Returns true if hints are useful to a worker at this moment. Called on the thread that calls
    // submit().
    virtual bool wants_hints() const { return false; }
    // Receives a prediction of the units that coming layers may request, the most likely first.
    // Called after submit() and on the same thread, so that the prediction runs while a round is in
    // flight. `hints` need not stay valid after this call.
    virtual void hint(std::span<const ExpertHint>) {}
};

// Computes one expert over some rows on the hub itself. A swarm uses it when no worker answers.
class ExpertCompute {
  public:
    virtual ~ExpertCompute() = default;
    // Computes y[r] = gates[r] * expert(x[r]) for each row r; y is [num_rows, hidden_size].
    // Thread-safe. The result of a row does not depend on num_rows.
    virtual Status compute(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                           std::span<const float> gates, std::span<float> y) const = 0;
    // Computes the same as compute() in integer arithmetic, with the same bits as the answer of a
    // worker that computes in integers (WorkerArithmetic in protocol/messages.h). Returns
    // `unsupported` if this object has no weights for integers.
    virtual Status compute_int8(std::uint32_t, std::uint32_t, std::span<const float>,
                                std::span<const float>, std::span<float>) const {
        return Error{ErrorCode::unsupported, "this backend has no experts in integers"};
    }
};

// The rounding of values on every backend. With --deterministic, x and each expert's answer are
// rounded to `wire_dtype`, and gates as rounded_gate() does. The sum over experts runs in f32 in
// ascending expert order. The arithmetic of a row does not depend on the batch that contains it.
struct ExpertRounding {
    bool deterministic = false;
    Dtype wire_dtype = Dtype::f16;

    // Gates are f16 on the wire, whatever the dtype of the rows. Beside f32 rows that would be the
    // only rounding. So the hub then sends gates of 1, and multiplies each pair's answer by the
    // gate itself before it sums. The bits are those of a worker that multiplies by the f32 gate.
    bool hub_multiplies_gates() const { return wire_dtype == Dtype::f32; }
    // Returns the gate by which an expert's answer is multiplied with --deterministic.
    float rounded_gate(float gate) const {
        return hub_multiplies_gates() ? gate : half_to_float(float_to_half(gate));
    }

    // Returns the dtype that a row of x, and the answers to it, have on the wire. This is
    // `wire_dtype`, with one exception: f16 ends at 65504, and a row with a larger value is sent as
    // bf16, which has fewer digits but no infinity. The decision depends on this row alone, not on
    // other rows of the batch. For a row that is already rounded to the dtype, this function
    // returns the same dtype.
    Dtype dtype_of(std::span<const float> row) const {
        if (wire_dtype != Dtype::f16) return wire_dtype;

        // smallest value that rounds to infinity in f16
        constexpr float rounds_to_infinity = 65520.0f;

        // The comparisons are combined with OR, so that several values are compared in parallel. A
        // running maximum would wait for the value before.
        unsigned is_beyond = 0;
        for (const float value : row) is_beyond |= std::fabs(value) >= rounds_to_infinity;
        return is_beyond ? Dtype::bf16 : Dtype::f16;
    }
};

}  // namespace moex
