#include "hub/dispatch/span/span_sequences.h"

#include <algorithm>

namespace moex {

std::uint32_t SpanSequences::known(std::uint64_t id) const {
    const auto found = sequences_.find(id);
    return found == sequences_.end() ? 0 : found->second.num_tokens;
}

void SpanSequences::set(std::uint64_t id, std::uint32_t num_tokens) {
    std::uint32_t& tokens = sequences_[id].num_tokens;
    pages_used_ = pages_used_ - pages_for(tokens) + pages_for(num_tokens);
    tokens = num_tokens;
}

void SpanSequences::keep_states_from(std::uint64_t id, std::uint32_t first) {
    sequences_[id].states_from = first;
}

bool SpanSequences::has_state(std::uint64_t id, std::uint32_t num_tokens) const {
    if (num_tokens == 0) return true;
    const auto found = sequences_.find(id);
    return found != sequences_.end() && found->second.states_from <= num_tokens &&
           num_tokens <= found->second.num_tokens;
}

void SpanSequences::at_most(std::uint64_t id, std::uint32_t num_tokens) {
    // The worker keeps its pages until the next step of the sequence, which gives them back.
    const auto found = sequences_.find(id);
    if (found != sequences_.end() && found->second.num_tokens > num_tokens) set(id, num_tokens);
}

void SpanSequences::doubt(std::uint64_t id, std::uint32_t num_tokens) {
    at_most(id, num_tokens);
    const auto found = sequences_.find(id);
    if (found != sequences_.end()) found->second.states_from = no_states;
}

bool SpanSequences::end(std::uint64_t id) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return false;
    pages_used_ -= pages_for(found->second.num_tokens);
    sequences_.erase(found);
    return true;
}

bool SpanSequences::has_room(std::span<const SpanSequence> sequences) const {
    std::uint64_t pages = pages_used_, num_sequences = sequences_.size();
    for (const SpanSequence& one : sequences) {
        const std::uint64_t held = pages_for(known(one.id)),
                            wanted = pages_for(std::uint64_t{one.num_before} + one.num_rows);
        pages += wanted - std::min(wanted, held);
        if (!sequences_.contains(one.id)) ++num_sequences;
    }
    return pages <= num_pages_ && (sequences_max_ == 0 || num_sequences <= sequences_max_);
}

}  // namespace moex
