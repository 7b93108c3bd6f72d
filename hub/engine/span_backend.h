// The engine's interface to workers that compute several consecutive layers whole (spans). At the
// first layer of a span the decoder, or the hub's GPU, sends rows of the residual stream, and it
// continues with the answer behind the last one. The keys and values that the rows add are part of
// the answer, and are stored in the hub's own pages. Of a layer with a gated delta rule, the inputs
// of its recurrence are part of the answer, and the hub's own state moves on with them. A span that
// is late, lost or wrong therefore costs time only: the decoder computes its layers itself, from
// the rows that it sent.
//   8 layers, span [2, 7): layers 0 and 1 here, one trip, layer 7 here
// The implementation is SpanClient (hub/dispatch/span/span_client.h). All calls are made on the
// engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "hub/base/clock.h"
#include "protocol/span_messages.h"

namespace moex {

// Where the layers of a span are computed in a step.
enum class SpanUse : std::uint8_t {
    here,   // by the hub
    check,  // by the hub, and by a worker; its answer is compared and not used
    away,   // by a worker
};

struct PlannedSpan {
    std::uint32_t id = 0;  // chosen by the backend
    std::uint32_t first_layer = 0, end_layer = 0;
    SpanUse use = SpanUse::here;
    // A check whose experts are computed on this machine, with weights that it reads for checks
    // alone. That is not the hub's own way, so its time is not recorded.
    bool with_own_weights = false;
    std::uint32_t num_rows = 0;  // of the whole step
};

// All rows of a step, as sequences.
struct SpanBatch {
    std::span<const SpanSequence> sequences;
    std::uint32_t num_rows = 0;
    bool may_leave = true;  // false: every span is computed here
    // Reads stored keys and values of sequences[index], at the positions [first, first + count), as
    // f16 [layers, count, key then value, kv_size], for the layers [first_layer, end_layer). What
    // could not be read must not be sent. The step fails with the error; while a standby is asked,
    // the hub computes the layers instead.
    std::function<Status(std::size_t index, std::uint32_t first_layer, std::uint32_t end_layer,
                         std::uint32_t first, std::uint32_t count, std::span<std::byte> out)>
        read_kv;
    // Returns the state of sequences[index] before its rows in a layer with a gated delta rule, as
    // SpanState has it (protocol/span_messages.h). An error is handled as one of read_kv.
    std::function<Result<std::vector<float>>(std::size_t index, std::uint32_t layer)> read_state =
        {};
};

// What a worker computed for the rows of a round.
struct SpanResult {
    std::vector<float> x;  // [num_rows, hidden_size], the residual stream behind the span
    // f16, each layer [num_rows, key then value, kv_size], or [num_rows, the inputs of a gated
    // delta rule]
    Bytes kv;
    std::uint64_t worker = 0;
    bool proven = false;  // the worker has a record of right answers
};

// Rows of a step on their way through a span. A destroyed round is dropped.
class SpanRound {
  public:
    virtual ~SpanRound() = default;
    // Blocks until the answer has arrived, for SpanUse::away. Errors: timeout, unavailable and
    // others, after which the hub computes the layers; `cancelled`: `stop` was requested.
    virtual Result<SpanResult> wait(std::stop_token stop) = 0;
    // For SpanUse::check: passes what the hub computed for the same rows. The answer is compared
    // with it when it arrives. `x_before` are the rows that were sent.
    virtual void compare(std::span<const float> x_before, std::span<const float> x, Bytes kv) = 0;
};

class SpanBackend {
  public:
    virtual ~SpanBackend() = default;
    // Returns the spans of a step, in ascending order, without overlap. The step follows the plan,
    // except that it may compute a span here instead. Keys and values that a worker lacks are sent
    // to it during this call.
    virtual std::vector<PlannedSpan> plan(const SpanBatch& batch) = 0;
    // Sends rows of a step through a span. `x` is [rows of the sequences, hidden_size], and need
    // not stay valid.
    virtual std::unique_ptr<SpanRound> submit(const PlannedSpan& span,
                                              std::span<const SpanSequence> sequences,
                                              std::span<const float> x) = 0;
    // The round of `span` with these rows was not answered: sends them to another worker that holds
    // the same layers, with the keys and values that it lacks. `batch` names the rows of the round.
    // Returns null if no other worker can take them.
    virtual std::unique_ptr<SpanRound> submit_again(const PlannedSpan&, const SpanBatch&,
                                                    std::span<const float> /*x*/) {
        return nullptr;
    }
    // Reports how long the layers of a span took for all rows of a step, where all rows were
    // computed at one place.
    virtual void record(const PlannedSpan& span, std::uint32_t num_rows, Duration took) = 0;
    // The sequence has ended: workers forget it.
    virtual void ended(std::uint64_t sequence) = 0;
    // The sequence has ended, and workers may keep what they have of it: another text may go on
    // under its number.
    virtual void kept(std::uint64_t sequence) { ended(sequence); }
    // Another text goes on under the number of a kept sequence, of which it has the first
    // `num_tokens` tokens.
    virtual void resumed(std::uint64_t /*sequence*/, std::uint32_t /*num_tokens*/) {}
};

}  // namespace moex
