// An answer for which a TokenChooser chooses the tokens, from the data that the GPU returns for the
// next token: its likeliest tokens, or all logits. Each step waits for the choice before it.
#pragma once

#include <vector>

#include "web-worker/decoder/answer_loop.h"

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
};

// Computes an answer from the tokens that a TokenChooser draws.
class SampledLoop : public AnswerLoop {
  public:
    // Continues the sequence of `decoder`, which outlives the loop and has no other user until the
    // loop ends. The likeliest tokens are used only if GpuDecoderOptions::likeliest is set.
    SampledLoop(GpuDecoder& decoder, SampledOptions options, std::unique_ptr<TokenChooser> chooser,
                Events events);

    void start(std::span<const std::uint32_t> prompt) override;
    void cancel() override { cancelled_ = true; }

  private:
    void read();
    void take(Result<std::uint32_t> token);
    void end(Result<AnswerEnd> how);

    GpuDecoder& decoder_;
    SampledOptions options_;
    std::unique_ptr<TokenChooser> chooser_;
    Events events_;
    StepLogits wanted_ = StepLogits::last;
    std::uint32_t num_tokens_ = 0;
    bool cancelled_ = false;
};

}  // namespace moex
