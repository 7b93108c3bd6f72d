#include "hub/dispatch/span/span_sequences.h"

#include <algorithm>
#include <utility>

namespace moex {

std::uint32_t SpanSequences::known(std::uint64_t id) const {
    const auto found = sequences_.find(id);
    return found == sequences_.end() ? 0 : found->second.num_tokens;
}

void SpanSequences::set(std::uint64_t id, std::uint32_t num_tokens) {
    Sequence& sequence = sequences_[id];
    const std::uint64_t pages = pages_for(num_tokens);
    pages_used_ += pages - sequence.pages;
    sequence.num_tokens = num_tokens;
    sequence.pages = pages;
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
    if (found != sequences_.end())
        found->second.num_tokens = std::min(found->second.num_tokens, num_tokens);
}

void SpanSequences::doubt(std::uint64_t id, std::uint32_t num_tokens) {
    at_most(id, num_tokens);
    const auto found = sequences_.find(id);
    if (found != sequences_.end()) found->second.states_from = no_states;
}

bool SpanSequences::end(std::uint64_t id) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return false;
    take_back(found->second);
    pages_used_ -= found->second.pages;
    sequences_.erase(found);
    return true;
}

void SpanSequences::keep(std::uint64_t id, TimePoint now) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end() || found->second.end != 0) return;
    found->second.end = ++num_ends_;
    kept_.emplace(num_ends_, Ended{id, now});
    pages_kept_ += found->second.pages;
}

// The sequence is not one of the kept ones any more.
void SpanSequences::take_back(Sequence& sequence) {
    if (kept_.erase(std::exchange(sequence.end, 0)) > 0) pages_kept_ -= sequence.pages;
}

void SpanSequences::resume(std::uint64_t id, std::uint32_t num_tokens) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    take_back(found->second);
    at_most(id, num_tokens);
}

std::optional<std::uint64_t> SpanSequences::drop_ended(TimePoint before) {
    if (kept_.empty() || kept_.begin()->second.at >= before) return std::nullopt;
    const std::uint64_t id = kept_.begin()->second.id;
    end(id);
    return id;
}

bool SpanSequences::has_room(std::span<const SpanSequence> sequences) const {
    return fit(sequences, pages_used_, sequences_.size());
}

bool SpanSequences::has_room_without_ended(std::span<const SpanSequence> sequences) const {
    return fit(sequences, pages_used_ - pages_kept_, sequences_.size() - kept_.size());
}

// Returns true if the worker has room for the rows. It has `num_sequences` sequences with
// `pages_used` pages; the sequences of the rows may be among them.
bool SpanSequences::fit(std::span<const SpanSequence> sequences, std::uint64_t pages_used,
                        std::uint64_t num_sequences) const {
    for (const SpanSequence& one : sequences) {
        const auto found = sequences_.find(one.id);
        // The step gives back what the worker has beyond it.
        if (found != sequences_.end()) pages_used -= found->second.pages;
        pages_used += pages_for(std::uint64_t{one.num_before} + one.num_rows);
        if (found == sequences_.end()) ++num_sequences;
    }
    return pages_used <= num_pages_ && (sequences_max_ == 0 || num_sequences <= sequences_max_);
}

}  // namespace moex
