// What a step shows of each MoE layer to those who watch it, and what a predictor answers: which
// experts a layer to come will be asked for. The engine computes the same bits whether anybody
// watches or not. Predictors live in hub/foresight.
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "hub/engine/kv_cache.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// Whose row it is. Sequences are told apart by address; one that begins is at position 0.
struct SequenceRow {
    KvCache::Sequence* kv = nullptr;
    std::uint32_t position = 0;
    TokenId token = 0;
};

// One MoE layer behind its router, before its experts. Spans are valid during the call.
struct RouteView {
    std::uint32_t layer = 0;
    std::uint32_t num_tokens = 0, top_k = 0, num_experts = 0, hidden_size = 0;
    std::uint32_t first_row = 0;                // of the step, where it was cut into parts
    std::span<const SequenceRow> rows;          // [num_tokens]
    std::span<const std::uint16_t> expert_ids;  // [num_tokens, top_k], by descending weight
    std::span<const float> expert_weights;      // [num_tokens, top_k]
    std::span<const float> router_logits;       // [num_tokens, num_experts]
    std::span<const float> residual;            // [num_tokens, hidden_size], behind attention
    std::span<const float> hidden;              // the same normalised: what router and experts read
};
using RouteWatch = std::function<void(const RouteView&)>;

class ExpertPredictor {
  public:
    virtual ~ExpertPredictor() = default;
    virtual std::string_view name() const = 0;

    // Confidence that a row of `seen` will ask for an expert of `target_layer`, a MoE layer:
    // [seen.num_tokens, num_experts], larger is surer, comparable within a row. The lead is the
    // number of MoE layers from seen.layer to it. False where this predictor knows nothing.
    virtual bool predict(const RouteView& seen, std::uint32_t target_layer,
                         std::span<float> confidence) = 0;
    // The same of a layer of the token behind each row, for who is a token ahead of the model.
    virtual bool predict_next_token(const RouteView&, std::uint32_t /*target_layer*/,
                                    std::span<float> /*confidence*/) {
        return false;
    }
    // A route that became known, in the order of positions; for who learns from the past.
    virtual void observe(const RouteView&) {}
    // What the last predict() took the router's input of the target layer to be, [num_tokens,
    // hidden_size]; empty where it guesses none.
    virtual std::span<const float> expected_hidden() const { return {}; }
};

}  // namespace moex
