#include "web-worker/spans/span_pages.h"

#include <algorithm>

namespace moex {

SpanPages::SpanPages(std::uint32_t num_pages, std::uint32_t page_tokens,
                     std::uint32_t context_tokens)
    : page_tokens_(page_tokens),
      context_tokens_(context_tokens) {
    free_.reserve(num_pages);
    for (std::uint32_t page = num_pages; page-- > 0;) free_.push_back(page);
}

std::span<const std::uint32_t> SpanPages::pages(std::uint64_t id) const {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return {};
    return found->second.pages;
}

std::uint32_t SpanPages::num_tokens(std::uint64_t id) const {
    const auto found = sequences_.find(id);
    return found == sequences_.end() ? 0 : found->second.num_tokens;
}

// Keeps the first `kept` pages of a sequence.
void SpanPages::give_back(Sequence& sequence, std::uint64_t kept,
                          std::vector<std::uint32_t>& freed) {
    while (sequence.pages.size() > kept) {
        freed.push_back(sequence.pages.back());
        free_.push_back(sequence.pages.back());
        sequence.pages.pop_back();
    }
}

SpanVerdict SpanPages::reserve(std::span<const SpanSequence> sequences,
                               std::vector<std::uint32_t>& freed) {
    // Check all sequences before any of them changes.
    std::uint64_t missing = 0, given_back = 0;
    for (const SpanSequence& one : sequences) {
        const std::uint64_t end = std::uint64_t{one.num_before} + one.num_rows;
        if (end > context_tokens_) return SpanVerdict::no_pages;
        if (num_tokens(one.id) < one.num_before) return SpanVerdict::unknown_sequence;
        const std::uint64_t held = pages(one.id).size(), wanted = pages_for(end);
        missing += wanted > held ? wanted - held : 0;
        given_back += held > wanted ? held - wanted : 0;
    }
    if (missing > free_.size() + given_back) return SpanVerdict::no_pages;

    for (const SpanSequence& one : sequences)
        give_back(sequences_[one.id], pages_for(std::uint64_t{one.num_before} + one.num_rows),
                  freed);
    for (const SpanSequence& one : sequences) {
        Sequence& sequence = sequences_[one.id];
        sequence.num_tokens = one.num_before + one.num_rows;
        while (sequence.pages.size() < pages_for(sequence.num_tokens)) {
            sequence.pages.push_back(free_.back());
            free_.pop_back();
        }
    }
    return SpanVerdict::done;
}

void SpanPages::end(std::uint64_t id, std::vector<std::uint32_t>& freed) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    give_back(found->second, 0, freed);
    sequences_.erase(found);
}

void SpanPages::end_all(std::vector<std::uint32_t>& freed) {
    for (auto& [id, sequence] : sequences_) give_back(sequence, 0, freed);
    sequences_.clear();
}

}  // namespace moex
