#include "hub/dispatch/span/span_sequences.h"

#include <algorithm>

namespace moex {

std::uint32_t SpanSequences::known(std::uint64_t id) const {
    const auto found = tokens_.find(id);
    return found == tokens_.end() ? 0 : found->second;
}

void SpanSequences::set(std::uint64_t id, std::uint32_t num_tokens) {
    std::uint32_t& tokens = tokens_[id];
    pages_used_ = pages_used_ - pages_for(tokens) + pages_for(num_tokens);
    tokens = num_tokens;
}

void SpanSequences::at_most(std::uint64_t id, std::uint32_t num_tokens) {
    // The worker keeps its pages until the next step of the sequence, which gives them back.
    const auto found = tokens_.find(id);
    if (found != tokens_.end() && found->second > num_tokens) set(id, num_tokens);
}

bool SpanSequences::end(std::uint64_t id) {
    const auto found = tokens_.find(id);
    if (found == tokens_.end()) return false;
    pages_used_ -= pages_for(found->second);
    tokens_.erase(found);
    return true;
}

bool SpanSequences::has_room(std::span<const SpanSequence> sequences) const {
    std::uint64_t pages = pages_used_;
    for (const SpanSequence& one : sequences) {
        const std::uint64_t held = pages_for(known(one.id)),
                            wanted = pages_for(std::uint64_t{one.num_before} + one.num_rows);
        pages += wanted - std::min(wanted, held);
    }
    return pages <= num_pages_;
}

}  // namespace moex
