#include "web-worker/decoder/answer_loop.h"

#include <algorithm>

namespace moex {

Status feed_prompt(GpuDecoder& decoder, std::span<const std::uint32_t> prompt, StepLogits logits) {
    while (!prompt.empty()) {
        const auto chunk = prompt.first(std::min<std::size_t>(prompt.size(), decoder.rows_max()));
        prompt = prompt.subspan(chunk.size());
        MOEX_TRY(decoder.feed(chunk, prompt.empty() ? logits : StepLogits::none));
    }
    return {};
}

}  // namespace moex
