// An answer for which a TokenChooser chooses the tokens, from the data that the decoder returns for
// the next token: its likeliest tokens, or all logits. Each step waits for the choice before it.
// With drafts (token_drafts.h) a step returns this data for several positions, and the choices are
// made in order, so that the tokens are those of an answer without drafts.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "web-worker/decoder/answer_loop.h"
#include "web-worker/decoder/sequence_decoder.h"
#include "web-worker/decoder/token_drafts.h"

namespace moex {

// Chooses the next token, once for each position of the answer.
class TokenChooser {
  public:
    using Candidates = std::span<const LikeliestList::Candidate>;
    virtual ~TokenChooser() = default;

    // Returns the number of likeliest tokens that choose() needs; 0: it needs all logits.
    virtual std::uint32_t num_likeliest() const = 0;
    // `likeliest` is sorted by descending logit. It has at least num_likeliest() tokens, or the
    // whole vocabulary.
    virtual std::uint32_t choose(Candidates likeliest) = 0;
    virtual std::uint32_t choose(std::span<const float> logits) = 0;
    // Called after `token` has been added to the answer.
    virtual void accept(std::uint32_t token) = 0;
};

// The limits of a sampled answer.
struct SampledOptions {
    std::uint32_t max_tokens = 0;
    std::vector<std::uint32_t> stop_ids;  // tokens that end the answer and are not part of it
    // Proposes tokens of the sequence, the prompt included; null: no drafts. Outlives the loop.
    // Used only if the decoder returns several rows (GpuDecoderOptions::draft_rows) and can go back
    // by single tokens.
    TokenDrafts* drafts = nullptr;
};

// Computes an answer from the tokens that a TokenChooser draws.
class SampledLoop : public AnswerLoop {
  public:
    // Continues the sequence of `decoder`, which outlives the loop and has no other user until the
    // loop ends. The likeliest tokens are used only if the decoder finds them.
    SampledLoop(SequenceDecoder& decoder, SampledOptions options,
                std::unique_ptr<TokenChooser> chooser, Events events);

    void start(std::span<const std::uint32_t> prompt) override;
    void cancel() override {
        cancelled_ = true;
        decoder_.drop_steps();
    }
    DraftCounts draft_counts() const override { return counts_; }

  private:
    using Lists = std::span<const LikeliestList>;
    void read();
    void take_lists(Lists lists);
    void take_logits(std::span<const float> logits);
    bool take(std::size_t row, std::uint32_t token);
    void next();
    void feed_next();
    void finish(AnswerEnd how, std::size_t row);
    void end_with(const Error& error);
    void end(Result<AnswerEnd> how);
    StepLogits wanted(std::size_t num_rows) const;

    SequenceDecoder& decoder_;
    SampledOptions options_;
    std::unique_ptr<TokenChooser> chooser_;
    Events events_;
    bool by_list_ = false;
    std::uint32_t num_tokens_ = 0;
    bool cancelled_ = false;

    // The step in flight: its drafted tokens, the tokens drawn so far, the length of the sequence
    // up to its first row, and its begin, which is unset for a step that reads a prompt.
    std::vector<std::uint32_t> drafted_, drawn_;
    std::uint32_t first_end_ = 0;
    std::optional<std::chrono::steady_clock::time_point> begun_at_;
    DraftCounts counts_;
};

}  // namespace moex
