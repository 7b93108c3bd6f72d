#include "web-worker/decoder/answer_loop.h"

#include <algorithm>

namespace moex {

std::span<const LikeliestList::Candidate> candidates_of(const LikeliestList& list,
                                                        std::uint32_t vocab_size) {
    const std::span<const LikeliestList::Candidate> all(list.candidates);
    const auto end = std::find_if(all.begin(), all.end(),
                                  [&](const auto& one) { return one.token >= vocab_size; });
    return all.first(static_cast<std::size_t>(end - all.begin()));
}

}  // namespace moex
