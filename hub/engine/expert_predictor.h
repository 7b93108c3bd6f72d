// The view of each MoE layer that a step gives to observers, and the interface of a predictor,
// which answers which experts a coming layer will request. The engine computes the same bits with
// or without observers. Predictors are in hub/foresight. Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "hub/engine/kv_cache.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// The sequence, position and token of a row. Sequences are distinguished by the address `kv`.
// Position 0 marks the beginning of a new sequence, since an address may be reused.
struct SequenceRow {
    KvCache::Sequence* kv = nullptr;
    std::uint32_t position = 0;
    TokenId token = 0;
    const float* follows = nullptr;  // StepRows::follows, [hidden_size]; null in a model
};

// A view of a MoE layer's inputs and router choice, before its experts are computed. The spans are
// valid only during the call that passes the view.
struct RouteView {
    std::uint32_t layer = 0;
    std::uint32_t num_tokens = 0, top_k = 0, num_experts = 0, hidden_size = 0;
    // index of the view's first row in the step, if the step was cut into micro-batches
    std::uint32_t first_row = 0;
    std::span<const SequenceRow> rows;  // [num_tokens]
    // [num_tokens, top_k], chosen experts by descending router weight
    std::span<const std::uint16_t> expert_ids;
    std::span<const float> expert_weights;  // [num_tokens, top_k]
    std::span<const float> router_logits;   // [num_tokens, num_experts]
    std::span<const float> residual;  // [num_tokens, hidden_size], residual stream after attention
    // [num_tokens, hidden_size], `residual` normalised: the input of router and experts
    std::span<const float> hidden;
};
using RouteWatch = std::function<void(const RouteView&)>;

class ExpertPredictor {
  public:
    virtual ~ExpertPredictor() = default;
    virtual std::string_view name() const = 0;

    // Writes the confidence that a row of `seen` will request each expert of `target_layer`, a MoE
    // layer: [num_tokens of `seen`, num_experts]. A larger value is more certain; only values of
    // the same row are comparable. The lead of a prediction is the number of MoE layers from
    // seen.layer to the target. Returns false if this predictor has no prediction.
    virtual bool predict(const RouteView& seen, std::uint32_t target_layer,
                         std::span<float> confidence) = 0;
    // Does the same as predict() for a layer of the token after each row, for callers that run one
    // token ahead of the model.
    virtual bool predict_next_token(const RouteView&, std::uint32_t /*target_layer*/,
                                    std::span<float> /*confidence*/) {
        return false;
    }
    // Receives the experts that a layer's router really chose, in the order of positions.
    // Predictors that learn from past choices override this.
    virtual void observe(const RouteView&) {}
    // The router input of the target layer as the latest call of predict() estimated it,
    // [num_tokens, hidden_size]; empty where this predictor makes no such estimate.
    virtual std::span<const float> expected_hidden() const { return {}; }
};

}  // namespace moex
