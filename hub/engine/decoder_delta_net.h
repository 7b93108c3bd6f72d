// A layer's gated delta rule, for rows that pass through the layers together: norm, projections, a
// causal convolution, the recurrence (delta_rule.h), a gated norm, and the output projection. The
// bits of a row depend neither on the other rows of the batch, nor on how its text is cut into
// steps, nor on the threads.
// Owner: a decoder (hub/engine/decoder.h); only the decoder's thread calls this.
// Source: transformers Qwen3NextGatedDeltaNet and Qwen3_5MoeGatedDeltaNet.
#pragma once

#include <cstdint>
#include <vector>

#include "hub/base/trace.h"
#include "hub/engine/decoder_attention.h"
#include "hub/engine/recurrent_state.h"

namespace moex {

class DecoderDeltaNet {
  public:
    // All arguments must outlive this object.
    DecoderDeltaNet(const ModelConfig& config, const DecoderWeights& weights, ThreadPool& threads,
                    const Trace::Row& trace_row);

    // Computes x += out(delta_net(norm(x))), and stores norm(x) of the new x in `normed`. The
    // state of each row's sequence moves on.
    void compute(AttendingRows& batch, std::uint32_t layer);

    // What a layer keeps of each row, as workers return it (RecurrentShape::kept_values()).
    std::size_t kept_values() const { return shape_.kept_values(); }
    // Appends it for the rows of the last compute(), as f16.
    void append_kept(Bytes& to) const;
    // Moves the state of each row's sequence on as compute() does for rows of which this is kept,
    // f16 [num_rows, kept_values()].
    void take_kept(std::span<const SequenceRow> rows, std::uint32_t layer, ByteView kept);
    // Returns the state of a sequence before the current step, as RecurrentState::before_step().
    std::vector<float> state_before_step(const SequenceRow& row, std::uint32_t layer) const;

  private:
    // Consecutive rows of the same sequence.
    struct Run {
        std::uint32_t first_row = 0, num_rows = 0, first_position = 0;
        RecurrentState::Layer memory;
        DeltaRows rows;
    };

    void project(AttendingRows& batch, std::uint32_t layer);
    void find_runs(std::span<const SequenceRow> rows, std::uint32_t layer);
    void move_on(std::span<const SequenceRow> rows, std::uint32_t layer);
    void convolve(const Run& run, const DeltaNetWeights& weights, std::size_t row,
                  std::size_t first_channel, std::size_t num_channels);
    void keep_columns(const Run& run) const;
    void shape_row(std::size_t row, const DeltaNetWeights& weights);
    void recur(std::vector<float>& out);
    void gate_row(AttendingRows& batch, std::size_t row, const DeltaNetWeights& weights) const;

    const ModelConfig& config_;
    const DecoderWeights& weights_;
    ThreadPool& threads_;
    const Trace::Row& trace_row_;
    const RecurrentShape shape_;
    const std::size_t channels_, value_size_;
    std::vector<std::uint32_t> index_of_layer_;  // counts the layers with a gated delta rule
    std::vector<Run> runs_;
    // Buffers, [num_rows, ...]: inputs and outputs of the convolution [channels_], gates of the
    // output [value_size_], and for each value head b, a, the log decay and β.
    std::vector<float> columns_, qkv_, z_, b_, a_, log_decay_, beta_;
    std::size_t num_kept_ = 0;    // rows of the last compute()
    std::vector<float> ignored_;  // outputs of take_kept()
};

}  // namespace moex
