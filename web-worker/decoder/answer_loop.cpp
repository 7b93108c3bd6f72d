#include "web-worker/decoder/answer_loop.h"

#include <algorithm>

namespace moex {

Status feed_prompt(SequenceDecoder& decoder, std::span<const std::uint32_t> prompt,
                   StepLogits logits) {
    while (!prompt.empty()) {
        const auto chunk = prompt.first(std::min<std::size_t>(prompt.size(), decoder.rows_max()));
        prompt = prompt.subspan(chunk.size());
        MOEX_TRY(decoder.feed(chunk, prompt.empty() ? logits : StepLogits::none));
    }
    return {};
}

std::span<const LikeliestList::Candidate> candidates_of(const LikeliestList& list,
                                                        std::uint32_t vocab_size) {
    const std::span<const LikeliestList::Candidate> all(list.candidates);
    const auto end = std::find_if(all.begin(), all.end(),
                                  [&](const auto& one) { return one.token >= vocab_size; });
    return all.first(static_cast<std::size_t>(end - all.begin()));
}

}  // namespace moex
