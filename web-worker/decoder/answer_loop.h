// An answer of one sequence, token by token: what goes on with what a GpuDecoder holds until a stop
// token, a length or a cancel ends it. How tokens are chosen is each loop's own.
#pragma once

#include <functional>
#include <span>

#include "web-worker/decoder/gpu_decoder.h"

namespace moex {

enum class AnswerEnd { stop, length, cancelled };

class AnswerLoop {
  public:
    struct Events {
        // In order; never empty.
        std::function<void(std::span<const std::uint32_t>)> on_tokens;
        // Once, last. The decoder then holds the prompt and the answer but its last token.
        std::function<void(Result<AnswerEnd>)> on_end;
    };
    virtual ~AnswerLoop() = default;

    // At least one token of prompt, all within the context.
    virtual void start(std::span<const std::uint32_t> prompt) = 0;
    virtual void cancel() = 0;  // what is under way is waited for and dropped
};

// All tokens of a prompt; of the last one what `logits` says.
Status feed_prompt(GpuDecoder& decoder, std::span<const std::uint32_t> prompt, StepLogits logits);

}  // namespace moex
