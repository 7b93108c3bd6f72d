// An answer whose tokens somebody else chooses, by what the GPU says of the next one: its likeliest
// tokens, or all logits. A step waits for the choice before it.
#pragma once

#include <vector>

#include "web-worker/decoder/answer_loop.h"

namespace moex {

// Says which token comes next, once for each place of the answer.
class TokenChooser {
  public:
    using Candidates = std::span<const LikeliestList::Candidate>;
    virtual ~TokenChooser() = default;

    // How many of the likeliest tokens it needs; 0: all logits.
    virtual std::uint32_t num_likeliest() const = 0;
    // By descending logit; as many as it needs or more, where the vocabulary has them.
    virtual std::uint32_t choose(Candidates likeliest) = 0;
    virtual std::uint32_t choose(std::span<const float> logits) = 0;
    // The token is a part of the answer.
    virtual void accept(std::uint32_t token) = 0;
};

struct SampledOptions {
    std::uint32_t max_tokens = 0;
    std::vector<std::uint32_t> stop_ids;  // end the answer and are not part of it
};

class SampledLoop : public AnswerLoop {
  public:
    // Continues what `decoder` holds; it outlives the loop and is used by nobody else meanwhile.
    // Its likeliest tokens are asked for where GpuDecoderOptions::likeliest gave them room.
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
