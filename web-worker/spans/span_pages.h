// The pages of keys and values of a span's sequences: which sequence owns which pages, and how many
// tokens of each are stored. Pure: the owner moves and clears the pages' contents.
//   page_tokens 128, sequence 5 with 130 tokens and pages {3, 0}: position 129 is in page 0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "protocol/span_messages.h"

namespace moex {

class SpanPages {
  public:
    SpanPages(std::uint32_t num_pages, std::uint32_t page_tokens, std::uint32_t context_tokens);

    // Makes room for rows at [num_before, num_before + num_rows) of each sequence, and forgets what
    // the sequences hold beyond num_before. `freed` gets pages that were given back, whose contents
    // the owner clears. Nothing changes unless the verdict is `done`.
    SpanVerdict reserve(std::span<const SpanSequence> sequences, std::vector<std::uint32_t>& freed);
    // Ends a sequence. An unknown id has no effect.
    void end(std::uint64_t id, std::vector<std::uint32_t>& freed);
    void end_all(std::vector<std::uint32_t>& freed);

    std::span<const std::uint32_t> pages(std::uint64_t id) const;
    std::uint32_t num_tokens(std::uint64_t id) const;  // 0 for an unknown id
    std::size_t num_sequences() const { return sequences_.size(); }
    std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }

  private:
    struct Sequence {
        std::vector<std::uint32_t> pages;
        std::uint32_t num_tokens = 0;
    };
    std::uint64_t pages_for(std::uint64_t num_tokens) const {
        return (num_tokens + page_tokens_ - 1) / page_tokens_;
    }
    void give_back(Sequence& sequence, std::uint64_t kept, std::vector<std::uint32_t>& freed);

    std::uint32_t page_tokens_, context_tokens_;
    std::map<std::uint64_t, Sequence> sequences_;
    std::vector<std::uint32_t> free_;
};

}  // namespace moex
