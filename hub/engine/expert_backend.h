// The engine's one way out: who computes a layer's experts
// it does not know, a browser tab or a local loop.
// Two implementations: LocalExperts (hub/engine/local_experts.h)
// and SwarmBackend (hub/dispatch/core/swarm_backend.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "hub/base/clock.h"
#include "protocol/result.h"
#include "protocol/tensor_format.h"

namespace moex {

// A unit that a coming layer may ask for; a backend may ignore it.
struct ExpertHint {
    std::uint16_t layer = 0, expert = 0;
    std::uint16_t deadline_ms = 0;
    std::uint8_t confidence = 0;
};

// A row that need not wait for all of its answers: what is not there so long after submit() may be
// left out of its sum, at most `pairs_max` of its experts.
struct RowPatience {
    std::uint32_t row = 0;  // of the batch
    Duration wait{};
    std::uint32_t pairs_max = 0;
};

// One layer of one micro-batch. All spans stay valid until the round's wait() has returned.
struct ExpertBatch {
    std::uint32_t layer = 0;
    std::uint32_t num_tokens = 0;
    std::uint32_t hidden_size = 0;
    std::uint32_t top_k = 0;
    std::span<const float> x;                   // [num_tokens, hidden_size], already normalised
    std::span<const std::uint16_t> expert_ids;  // [num_tokens, top_k], distinct within a row
    std::span<const float> expert_weights;      // [num_tokens, top_k]
    // [num_tokens, hidden_size], overwritten with the weighted sum over experts
    std::span<float> y;
    // Ascending by row; the others wait for everything, and so does who computes here.
    std::span<const RowPatience> patience = {};
};

// Where a row's answers came from, counted over all its pairs.
struct RowProvenance {
    std::uint16_t pairs_remote = 0, pairs_local = 0;
    std::uint16_t pairs_hedged = 0;  // had more than one attempt
    // Of the remote ones: computed again and found right before they counted; by workers with a
    // record, whose answers are checked at a rate. The rest nobody could check.
    std::uint16_t pairs_verified = 0, pairs_proven = 0;
    std::uint16_t pairs_late = 0;  // had no answer when the row's patience ended
};
// An answer that was not waited for: nothing of it is in y.
struct LatePair {
    std::uint32_t row = 0;
    std::uint16_t expert = 0;
};
// A worker that computed pairs of a row.
struct RowWorker {
    std::uint32_t row = 0;
    std::uint64_t worker = 0;
};
struct ExpertAnswer {
    std::vector<RowProvenance> rows;     // [num_tokens]
    std::vector<std::uint64_t> workers;  // distinct ids that contributed to this round
    std::vector<RowWorker> row_workers;  // in no order; a pair of both may stand here twice
    std::vector<LatePair> late;          // of rows with a patience alone
    Duration waited{};                   // from submit to complete
};

// One round in flight. Dropping it without wait() cancels it.
class ExpertRound {
  public:
    virtual ~ExpertRound() = default;
    // Blocks the engine's thread until y is written. `unavailable`:
    // no answerer and no local weights; `timeout`: see message;
    // `num_tokens_range`: the answerers take less at a time
    // than was planned; the same batch once more is cut finer;
    // `cancelled`: `stop` was requested before the round was complete. Called once.
    virtual Result<ExpertAnswer> wait(std::stop_token stop = {}) = 0;
};

class ExpertBackend {
  public:
    virtual ~ExpertBackend() = default;
    // Starts a round; several may be in flight.
    virtual std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) = 0;
    virtual const char* name() const = 0;  // "local", "swarm"
    // Whether a round goes on while the engine's thread computes something else.
    virtual bool works_elsewhere() const { return false; }
    // Whether hints would help anybody just now. From the thread that submits.
    virtual bool wants_hints() const { return false; }
    // What coming layers may be asked for, the surest first. Behind submit(): they are guessed
    // while a round is on its way. The same thread; `hints` is read before this returns.
    virtual void hint(std::span<const ExpertHint>) {}
};

// Computes one expert over some rows on the hub itself: whom a swarm asks when no worker answers.
class ExpertCompute {
  public:
    virtual ~ExpertCompute() = default;
    // y [num_rows, hidden_size] = gates[r] * expert(x[r]), gates applied. Thread-safe.
    // A row's result does not depend on num_rows.
    virtual Status compute(std::uint32_t layer, std::uint32_t expert, std::span<const float> x,
                           std::span<const float> gates, std::span<float> y) const = 0;
    // The same in integers, the bits that a worker of that arithmetic answers (WorkerArithmetic in
    // protocol/messages.h). `unsupported` where this one has no such weights.
    virtual Status compute_int8(std::uint32_t, std::uint32_t, std::span<const float>,
                                std::span<const float>, std::span<float>) const {
        return Error{ErrorCode::unsupported, "no experts in integers here"};
    }
};

// What --deterministic fixes: x, gates and each expert's answer are rounded to
// `wire_dtype` on every backend; the sum over experts runs in f32 in ascending
// expert order; a row's arithmetic does not depend on the batch it is in.
struct ExpertRounding {
    bool deterministic = false;
    Dtype wire_dtype = Dtype::f16;

    // How a row of x, and the answers to it, travel: as `wire_dtype`; where that is f16, which ends
    // at 65504, a row with a larger value goes as bf16: fewer digits, but no infinity. The row
    // alone decides, so that its neighbours change nothing. A row that was rounded so keeps its
    // dtype.
    Dtype dtype_of(std::span<const float> row) const {
        if (wire_dtype != Dtype::f16) return wire_dtype;

        constexpr float rounds_to_infinity =
            65520.0f;  // the first value that f16 has no number for
        // Or'ed, so that values are looked at side by side: a maximum waits for the one before.
        unsigned is_beyond = 0;
        for (const float value : row) is_beyond |= std::fabs(value) >= rounds_to_infinity;
        return is_beyond ? Dtype::bf16 : Dtype::f16;
    }
};

}  // namespace moex
