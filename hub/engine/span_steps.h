// The spans of one step: which rows are at a worker, and what their answers add to the residual
// stream and to the cache. The device that computes the step asks at each layer of each
// micro-batch. Owner: the hub's decoder, or its GPU.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "hub/engine/decoder_delta_net.h"
#include "hub/engine/expert_predictor.h"
#include "hub/engine/span_backend.h"
#include "hub/engine/step_device.h"
#include "hub/model/config.h"

namespace moex {

// The keys and values of a device that stores them itself (KvCacheOptions::mover).
class SpanKvStore {
  public:
    virtual ~SpanKvStore() = default;
    // Copy the keys and values of `rows` out of the device and into it, for the layers
    // [first_layer, end_layer): f16 [layers, rows, key then value, kv_size]. Error: device_lost.
    virtual Status read(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                        std::uint32_t end_layer, std::span<std::byte> out) = 0;
    virtual Status write(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                         std::uint32_t end_layer, ByteView kv) = 0;
    // For a layer with a gated delta rule, as DecoderDeltaNet has them: the state of a sequence
    // before the current step; and moving the states on, with what the layer keeps of the rows of a
    // micro-batch.
    virtual Result<std::vector<float>> state_before_step(const SequenceRow& row,
                                                         std::uint32_t layer) = 0;
    virtual Status take_kept(std::size_t part, std::span<const SequenceRow> rows,
                             std::uint32_t layer, ByteView kept) = 0;
};

class SpanSteps {
  public:
    // `store` outlives this object; null: the KvCache of the rows stores keys and values.
    // `delta_net` computes the gated delta rules of the same decoder, and outlives this object;
    // null for a device with a store.
    explicit SpanSteps(const ModelConfig& config, SpanKvStore* store = nullptr,
                       DecoderDeltaNet* delta_net = nullptr)
        : config_(config),
          kept_values_(RecurrentShape::of(config).kept_values()),
          store_(store),
          delta_net_(delta_net) {}
    // `backend` outlives this object; null: no spans.
    void use(SpanBackend* backend) { backend_ = backend; }
    bool is_on() const { return backend_ != nullptr; }

    // Plans the spans of a step. `num_parts` micro-batches follow. A step with rows that may not
    // leave the hub has no spans. Error: keys, values or a state that a worker lacks could not be
    // read from the device; nothing was sent in their place.
    [[nodiscard]] Status begin(std::span<const SequenceRow> rows, std::size_t num_parts,
                               bool may_leave);
    // Called at each layer, before its first micro-batch.
    void enter_layer(std::uint32_t layer);

    // Returns true if rows are sent at this layer.
    bool starts(std::uint32_t layer) const {
        const PlannedSpan* const span = plan_.empty() ? nullptr : span_from(layer);
        return span != nullptr && span->use != SpanUse::here;
    }
    // Returns true if the hub checks the layer's worker with weights of its own.
    bool checks_with_weights(std::uint32_t layer) const;
    // At the first layer of a span: sends the rows `x` of a micro-batch to a worker. Returns true
    // if the rows are away, so that the micro-batch skips this layer.
    bool leave(std::size_t part, std::uint32_t layer, std::span<const SequenceRow> rows,
               std::span<const float> x);
    // Returns true while the rows of a micro-batch are away at this layer.
    bool is_away(std::size_t part, std::uint32_t layer) const;
    // Called when a gated delta rule of a micro-batch was computed here: a check needs what the
    // layer keeps of its rows. A device with a store asks wants_kept(), and calls keep().
    void computed_delta_rule(std::size_t part, std::uint32_t layer);
    bool wants_kept(std::size_t part, std::uint32_t layer) const;
    void keep(std::size_t part, std::uint32_t layer, Bytes kept) {
        parts_[part].kept[layer] = std::move(kept);
    }
    // Returns true if the rows of a micro-batch were sent to a worker and a span ends before this
    // layer.
    bool ends(std::size_t part, std::uint32_t layer) const;

    // The layers that the hub computes because a worker did not.
    struct Layers {
        std::uint32_t first = 0, end = 0;
    };
    // At the layer behind a span: takes the rows of a micro-batch back. Stores the answer in `x`
    // and in the cache, and counts it in `result`, from row `first_row` on. Returns the layers that
    // the hub has to compute for the unchanged `x`, if the worker did not answer.
    Result<std::optional<Layers>> come_back(std::size_t part, std::uint32_t layer,
                                            std::span<const SequenceRow> rows, std::span<float> x,
                                            StepResult& result, std::size_t first_row,
                                            const std::stop_token& stop);
    // Drops all rounds in flight, after a failed step.
    void drop();

  private:
    struct Part {
        std::unique_ptr<SpanRound> round;
        const PlannedSpan* span = nullptr;  // the span that the round belongs to
        std::vector<float> sent;            // of a check: the rows that were sent
        // of a check: what gated delta rules keep of the rows, by layer
        std::map<std::uint32_t, Bytes> kept;
    };
    const PlannedSpan* span_from(std::uint32_t layer) const;
    // Calls use(batch) with the rows as a batch, which is valid during the call. Returns the first
    // error of a read by which the batch serves keys, values and states.
    Status with_batch(std::span<const SequenceRow> rows, bool may_leave,
                      const std::function<void(const SpanBatch& batch)>& use) const;
    Result<SpanResult> wait(const PlannedSpan& span, std::unique_ptr<SpanRound> round,
                            std::span<const SequenceRow> rows, std::span<const float> x,
                            const std::stop_token& stop) const;
    void read_kv(const SequenceRow& row, std::uint32_t layer, std::uint32_t position,
                 std::byte* out) const;
    std::size_t kept_bytes(std::uint32_t layer) const;
    Status read_kv_of(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                      std::uint32_t end_layer, std::span<std::byte> out) const;
    Result<Bytes> kept_here(Part& part, const PlannedSpan& span,
                            std::span<const SequenceRow> rows) const;
    std::uint32_t end_of_keys(std::uint32_t layer, std::uint32_t end) const;
    Result<std::vector<float>> state_of(const SequenceRow& row, std::uint32_t layer) const;
    Status store(std::size_t part, const SpanResult& answer, const PlannedSpan& span,
                 std::span<const SequenceRow> rows) const;
    Status store_kv(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                    std::uint32_t end_layer, ByteView kv) const;
    void count(const SpanResult& answer, const PlannedSpan& span, std::size_t num_rows,
               StepResult& result, std::size_t first_row) const;

    const ModelConfig& config_;
    const std::size_t kept_values_;  // of a row in a layer with a gated delta rule
    SpanKvStore* const store_;
    DecoderDeltaNet* const delta_net_;
    SpanBackend* backend_ = nullptr;
    std::vector<PlannedSpan> plan_;
    std::vector<Part> parts_;
    std::uint32_t num_rows_ = 0;
    const PlannedSpan* timed_ = nullptr;  // the span that the step is in
    bool timed_whole_ = false;            // all its rows are computed at one place
    TimePoint entered_{};
};

// Groups consecutive rows of one sequence.
std::vector<SpanSequence> sequences_of(std::span<const SequenceRow> rows);

}  // namespace moex
