// Computes the steps of one loaded span on a GPU, for many sequences. It assigns the pages of keys
// and values, and the places of recurrent states. It clears a page when its sequence has ended or
// was rolled back, and a state when its sequence has ended.
// Owner: the worker's thread. One step is computed at a time.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "protocol/span_messages.h"
#include "web-worker/decoder/gpu_decoder.h"
#include "web-worker/spans/span_pages.h"
#include "web-worker/spans/span_states.h"

namespace moex {

class SpanDecoder {
  public:
    // Takes a decoder of a span (DecoderModel::is_span) that was made for several sequences. If it
    // has recurrent layers, it has SpanStates::num_slots(sequences_max) places for states, and as
    // many journals as sequences.
    SpanDecoder(std::unique_ptr<GpuDecoder> decoder, std::uint32_t context_tokens,
                std::uint32_t sequences_max);

    // Returns how many rows the frame of an answer has room for.
    static std::uint32_t rows_of_a_frame(const DecoderModel& model);

    std::uint32_t num_layers() const { return decoder_->model().num_layers; }
    std::uint32_t num_pages() const { return decoder_->num_pages(); }
    // Returns the limit of sequences; 0: the pages are the only limit.
    std::uint32_t sequences_max() const { return sequences_max_; }
    std::uint32_t rows_max() const { return rows_max_; }
    const GpuDecoder& decoder() const { return *decoder_; }

    // Computes a step. `done` gets the answer, also when the step is refused, or an error of the
    // device. The next step, or other call, may be made after `done` was called. A refused step
    // ends its sequences, since the hub may have sent others that assume it.
    void step(const SpanStep& step, std::function<void(Result<SpanAnswer>)> done);
    // Store keys and values, or the state of one layer, that were computed elsewhere. If they
    // cannot be stored, the sequence ends.
    SpanVerdict take_kv(const SpanKv& kv);
    SpanVerdict take_state(const SpanState& state);
    void end(std::span<const std::uint64_t> sequences);
    void end_all();

    // Measures the time of a layer for 1, 8 and 64 rows. Call it before the first step.
    void measure(std::function<double()> now_ms,
                 std::function<void(Result<std::array<std::uint32_t, 3>>)> done);

  private:
    DecoderBatch batch_of(std::span<const SpanSequence> sequences);
    SpanVerdict store(const SpanKv& kv);
    SpanVerdict store(const SpanState& state);
    void clear(std::vector<std::uint32_t>& freed);
    void clear(const SpanStates::Freed& freed);
    void measure_next(std::size_t index, std::array<std::uint32_t, 3> us,
                      std::function<double()> now_ms,
                      std::function<void(Result<std::array<std::uint32_t, 3>>)> done);

    std::unique_ptr<GpuDecoder> decoder_;
    SpanPages pages_;
    SpanStates states_;
    std::uint32_t rows_max_, sequences_max_;
    std::vector<std::uint32_t> recurrent_;  // the layers with a gated delta rule
    std::vector<DeltaRun> runs_;
    std::vector<StepRow> rows_;
    std::vector<std::uint32_t> tables_;
};

}  // namespace moex
