// A layer's attention, for rows that go through the layers together: norm, q, k and v, their
// turning by position, sums over cached values, and o. A row's bits depend on neither its
// neighbours nor the threads. Owner: a decoder (hub/engine/decoder.h), whose thread alone calls it.
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

namespace moex {

// Rows with their buffers, reused from step to step; each buffer is [rows, ...], or longer.
struct AttendingRows {
    std::span<const SequenceRow> rows;
    std::vector<float> x;        // [hidden_size], the residual stream
    std::vector<float> normed;   // [hidden_size]
    std::vector<float> cos_sin;  // [head_dim], of the rows' positions
    std::vector<float> q, k, v, attended, projected, attend_parts;
    QuantizedBuffer codes;  // what a product of integers reads
};

class DecoderAttention {
  public:
    // All outlive this.
    DecoderAttention(const ModelConfig& config, const DecoderWeights& weights, ThreadPool& threads,
                     const Trace::Row& trace_row);

    // x += o(attention(norm(x))), and normed, the norm of that. The rows' keys and values enter the
    // cache first, so rows of one sequence see each other.
    void compute(AttendingRows& batch, std::uint32_t layer) const;

  private:
    void norm(std::span<float> out, std::span<const float> x, std::span<const float> weight) const;
    void project(AttendingRows& batch, std::uint32_t layer) const;
    void turn_heads(AttendingRows& batch, std::uint32_t layer, std::size_t row,
                    std::uint32_t kv_head) const;
    void turn_all_heads(AttendingRows& batch, std::uint32_t layer) const;
    std::size_t turn_floats() const;  // of one kv head and its query heads
    std::vector<AttendTask> tasks_of(AttendingRows& batch, std::uint32_t layer) const;
    void attend_rows(AttendingRows& batch, std::uint32_t layer) const;
    void attend_split(AttendingRows& batch, std::span<const AttendTask> tasks,
                      std::size_t num_blocks,
                      const std::function<RowsOut(const AttendTask&)>& out_of) const;

    const ModelConfig& config_;
    const DecoderWeights& weights_;
    ThreadPool& threads_;
    const Trace::Row& trace_row_;
    const AttentionShape shape_;
    const std::uint32_t q_size_, kv_size_;
};

}  // namespace moex
