// A greedy answer in the manner of WeInfer: steps are issued without waiting for earlier steps, and
// the chosen tokens are read only every few steps. Tokens after the end of the answer are
// discarded.
// Source: Chen et al., "WeInfer", WWW 2025, algorithm 1 and eq. 15.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "web-worker/decoder/answer_loop.h"

namespace moex {

// The limits of a greedy answer.
struct GreedyOptions {
    std::uint32_t max_tokens = 0;
    // The limit of tokens per readback. The first token is read at once; later readbacks double in
    // size until a readback takes the time `reading_max`. On a cancel, up to two readbacks may be
    // in flight.
    std::uint32_t fetch_tokens = 8;
    std::chrono::microseconds reading_max{20'000};
    std::vector<std::uint32_t> stop_ids;  // tokens that end the answer and are not part of it
};

// Computes an answer from the likeliest tokens, which the GPU chooses.
class GreedyLoop : public AnswerLoop {
  public:
    // Continues the sequence that `decoder` holds. `decoder` outlives the loop, and no other code
    // uses the decoder while the loop runs.
    GreedyLoop(GpuDecoder& decoder, GreedyOptions options, Events events);

    void start(std::span<const std::uint32_t> prompt) override;
    void cancel() override { cancelled_ = true; }

  private:
    void issue();
    void fetch(std::uint32_t count);
    void on_ids(std::span<const std::uint32_t> ids);
    void adapt(std::size_t num_ids);
    void finish_when_idle();
    void end(Result<AnswerEnd> how);

    GpuDecoder& decoder_;
    GreedyOptions options_;
    Events events_;
    std::uint32_t first_position_ = 0;  // position of the answer in the context
    std::uint32_t issued_ = 0, delivered_ = 0;
    std::uint32_t reading_ = 1;  // tokens of the next readback
    std::uint32_t under_way_ = 0;
    std::chrono::steady_clock::time_point heard_at_;
    bool cancelled_ = false, ended_ = false;
    AnswerEnd how_ = AnswerEnd::length;
};

}  // namespace moex
