// A greedy answer in the manner of WeInfer: steps are issued without waiting for earlier steps, and
// the chosen tokens are read only every few steps. Tokens after the end of the answer are
// discarded. Where drafted tokens pay (token_drafts.h), the steps in flight end first. Then each
// step computes the drafted tokens with the last token and is waited for, until a step without
// drafts pays again.
// Source: Chen et al., "WeInfer", WWW 2025, algorithm 1 and eq. 15.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "web-worker/decoder/answer_loop.h"
#include "web-worker/decoder/gpu_decoder.h"

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
    // Proposes tokens of the sequence, the prompt included; null: no drafts. Outlives the loop.
    // Used only if the decoder returns the likeliest tokens of several rows and can go back by
    // single tokens.
    TokenDrafts* drafts = nullptr;
};

// Computes an answer from the likeliest tokens, which the GPU chooses.
class GreedyLoop : public AnswerLoop {
  public:
    // Continues the sequence that `decoder` holds. `decoder` outlives the loop, and no other code
    // uses the decoder while the loop runs.
    GreedyLoop(GpuDecoder& decoder, GreedyOptions options, Events events);

    void start(std::span<const std::uint32_t> prompt) override;
    void cancel() override { cancelled_ = true; }
    DraftCounts draft_counts() const override { return counts_; }

  private:
    void issue();
    void fetch(std::uint32_t count);
    void on_ids(std::span<const std::uint32_t> ids);
    std::chrono::nanoseconds adapt(std::size_t num_ids);
    void learn(std::span<const std::uint32_t> ids, std::chrono::nanoseconds each);
    void propose();
    void compute_drafts(std::size_t num_drafts);
    void on_lists(std::span<const LikeliestList> lists);
    bool take(std::size_t row, std::uint32_t token);
    void resume();
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

    // Drafts: the last token of the sequence; the proposal behind it; the number of its tokens that
    // wait until the steps in flight have ended; and the drafted step in flight.
    std::uint32_t last_ = 0;
    TokenDrafts::TokenIds proposed_;
    std::size_t waiting_ = 0;
    std::vector<std::uint32_t> drafted_, drawn_;
    std::uint32_t first_end_ = 0;  // length of the sequence up to that step's first row
    std::chrono::steady_clock::time_point begun_at_;
    DraftCounts counts_;
};

}  // namespace moex
