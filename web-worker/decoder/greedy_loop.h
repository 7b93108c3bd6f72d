// A greedy answer as WeInfer decodes: steps are issued without waiting for those before them, and
// only every so many steps the chosen tokens are read. What lies behind the end is discarded.
// Source: Chen et al., "WeInfer", WWW 2025, algorithm 1 and eq. 15.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "web-worker/decoder/answer_loop.h"

namespace moex {

struct GreedyOptions {
    std::uint32_t max_tokens = 0;
    // Tokens of one reading, at most; the first comes at once, the next in readings that double
    // until one takes `reading_max`. Twice as much may be under way when somebody cancels.
    std::uint32_t fetch_tokens = 8;
    std::chrono::microseconds reading_max{20'000};
    std::vector<std::uint32_t> stop_ids;  // end the answer and are not part of it
};

class GreedyLoop : public AnswerLoop {
  public:
    // Continues what `decoder` holds; it outlives the loop and is used by nobody else meanwhile.
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
    std::uint32_t first_position_ = 0;  // of the answer
    std::uint32_t issued_ = 0, delivered_ = 0;
    std::uint32_t reading_ = 1;  // tokens of the next reading
    std::uint32_t under_way_ = 0;
    std::chrono::steady_clock::time_point heard_at_;
    bool cancelled_ = false, ended_ = false;
    AnswerEnd how_ = AnswerEnd::length;
};

}  // namespace moex
