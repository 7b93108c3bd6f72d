// Computes an answer for a sequence, token by token, starting from the tokens that a decoder
// holds, until a stop token, a length limit or a cancel ends the answer. Each derived loop decides
// how tokens are chosen.
#pragma once

#include <algorithm>
#include <functional>
#include <span>

#include "web-worker/decoder/step_rows.h"
#include "web-worker/decoder/token_drafts.h"

namespace moex {

enum class AnswerEnd { stop, length, cancelled };

// Computes one answer to a prompt. GreedyLoop and SampledLoop implement this interface.
class AnswerLoop {
  public:
    struct Events {
        // Receives new tokens in order; the span is never empty.
        std::function<void(std::span<const std::uint32_t>)> on_tokens;
        // Called once, as the last event. The decoder then holds the prompt and the answer without
        // its last token.
        std::function<void(Result<AnswerEnd>)> on_end;
    };
    virtual ~AnswerLoop() = default;

    // `prompt` has at least one token, and all of its tokens fit the context.
    virtual void start(std::span<const std::uint32_t> prompt) = 0;
    virtual void cancel() = 0;  // lets the steps in flight end, and drops their tokens
    // Returns the counts of the steps so far; zeros if the loop uses no drafts.
    virtual DraftCounts draft_counts() const { return {}; }
};

// Feeds all tokens of `prompt` to the decoder; `logits` selects the logits of the last token.
// The decoder is a GpuDecoder or a SequenceDecoder.
template <class Decoder>
Status feed_prompt(Decoder& decoder, std::span<const std::uint32_t> prompt, StepLogits logits) {
    while (!prompt.empty()) {
        const auto chunk = prompt.first(std::min<std::size_t>(prompt.size(), decoder.rows_max()));
        prompt = prompt.subspan(chunk.size());
        MOEX_TRY(decoder.feed(chunk, prompt.empty() ? logits : StepLogits::none));
    }
    return {};
}

// Returns the candidates of `list` without the empty entries at its end, which exist if the
// vocabulary is smaller than the list.
std::span<const LikeliestList::Candidate> candidates_of(const LikeliestList& list,
                                                        std::uint32_t vocab_size);

}  // namespace moex
