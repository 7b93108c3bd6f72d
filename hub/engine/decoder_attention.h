// The attention of a layer, for rows that pass through the layers together: norm, q, k and v, the
// rotation by position (RoPE), sums over cached values, and o. The bits of a row depend neither on
// the other rows of the batch nor on the threads.
// Owner: a decoder (hub/engine/decoder.h); only the decoder's thread calls this.
// Source: Vaswani et al., "Attention Is All You Need", 2017; Ainslie et al., "GQA", 2023.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "hub/base/trace.h"
#include "hub/engine/attention.h"
#include "hub/engine/decoder_weights.h"
#include "hub/engine/expert_predictor.h"
#include "hub/engine/kernels/quantized_rows.h"
#include "hub/engine/layer_ropes.h"

namespace moex {

// The rows of a micro-batch with the buffers of their attention, which are reused from step to
// step. Each buffer is [num_rows, ...], or longer.
struct AttendingRows {
    std::span<const SequenceRow> rows;
    std::vector<float> x;        // [hidden_size] per row, the residual stream
    std::vector<float> normed;   // [hidden_size]
    std::vector<float> cos_sin;  // [LayerRopes::row_size()] per row: rotations at its position
    std::vector<float> q, k, v, attended, projected, attend_parts;
    std::vector<float> output_gate;  // [num_heads · head_dim], where the layer has one
    QuantizedBuffer codes;           // rows converted to codes, input of the integer products
};

// Adds to x what attention or an FFN computed, times the layer's residual multiplier.
inline void add_branch(std::span<float> x, std::span<const float> branch, const LayerPlan& plan) {
    if (plan.residual_multiplier == 1.0) return add_to(x, branch);
    add_scaled_to(x, branch, static_cast<float>(plan.residual_multiplier));
}

// Adds the projected rows of a layer's mixer to x, and stores norm(x) in `normed`.
void add_mixed(AttendingRows& batch, const DecoderLayer& layer, const LayerPlan& plan,
               const ModelConfig& config, ThreadPool& threads);

class DecoderAttention {
  public:
    // All arguments must outlive this object.
    DecoderAttention(const ModelConfig& config, const DecoderWeights& weights,
                     const LayerRopes& ropes, ThreadPool& threads, const Trace::Row& trace_row);

    // Computes x += o(attention(norm(x))), and stores norm(x) of the new x in `normed`. The keys
    // and values of the rows enter the cache first, so that rows of the same sequence see each
    // other.
    void compute(AttendingRows& batch, std::uint32_t layer) const;

  private:
    void norm(std::span<float> out, std::span<const float> x, std::span<const float> weight) const;
    void project(AttendingRows& batch, std::uint32_t layer) const;
    void norm_rows(AttendingRows& batch, std::uint32_t layer) const;
    void turn_heads(AttendingRows& batch, std::uint32_t layer, std::size_t row,
                    std::uint32_t kv_head) const;
    void turn_all_heads(AttendingRows& batch, std::uint32_t layer) const;
    std::size_t turn_floats() const;  // number of floats of one kv head and its query heads
    std::vector<AttendTask> tasks_of(AttendingRows& batch, std::uint32_t layer) const;
    void attend_rows(AttendingRows& batch, std::uint32_t layer) const;
    void gate_rows(AttendingRows& batch) const;
    void attend_split(AttendingRows& batch, std::span<const AttendTask> tasks,
                      std::size_t num_blocks,
                      const std::function<RowsOut(const AttendTask&)>& out_of) const;

    const ModelConfig& config_;
    const DecoderWeights& weights_;
    const LayerRopes& ropes_;
    ThreadPool& threads_;
    const Trace::Row& trace_row_;
    const AttentionShape shape_;
    const std::uint32_t q_size_, kv_size_;
};

}  // namespace moex
