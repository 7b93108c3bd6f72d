// The interface of drafts for the one sequence of a decoder (speculative decoding). A draft
// proposes tokens that may follow. A loop computes them in one step with the last token, draws each
// position as it would without drafts, and keeps the drafted tokens up to the first one that
// differs from the drawn token. The rows after it leave the cache. So drafts change how many steps
// an answer takes, and never its text.
//   last token t, drafts a b c; drawn a x: the step added a and x, and the rows of b and c are gone
// Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
// Decoding", 2023.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

namespace moex {

// Most tokens that are drafted in a step, and most rows of a step that draws from all of them.
inline constexpr std::uint32_t drafts_max = 15, draft_rows_max = drafts_max + 1;

// Counts the steps of an answer that drew tokens.
struct DraftCounts {
    std::uint64_t steps = 0;
    std::uint64_t drafts = 0;  // steps that had drafted tokens
    std::uint64_t drafted_tokens = 0, accepted_tokens = 0;
    // [n]: number of drafts with exactly n accepted tokens
    std::array<std::uint64_t, drafts_max + 1> accepted_histogram{};

    void add(std::size_t drafted, std::size_t accepted) {
        ++steps;
        if (drafted == 0) return;
        ++drafts;
        drafted_tokens += drafted;
        accepted_tokens += accepted;
        ++accepted_histogram[accepted];
    }
};

// Proposes tokens, and learns how often they are right and what their rows cost. A loop calls
// propose(), then once or not at all num_paying(), then record() for the same position.
class TokenDrafts {
  public:
    using TokenIds = std::span<const std::uint32_t>;
    virtual ~TokenDrafts() = default;

    // Returns at most `tokens_max` tokens that may follow the sequence; valid until the next call.
    virtual TokenIds propose(std::uint32_t tokens_max) = 0;
    // Returns how many of the proposed tokens the next step should compute; 0 where a step without
    // drafts is expected to give more tokens a second.
    virtual std::uint32_t num_paying() = 0;
    // Takes over the tokens that were drawn. `num_rows`: drafted tokens that the step computed.
    // `took`: the time of the step; 0 if it says nothing of a step (one that reads a prompt).
    virtual void record(TokenIds drawn, std::uint32_t num_rows, std::chrono::nanoseconds took) = 0;
};

}  // namespace moex
