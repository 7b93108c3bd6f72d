// What the holder of a span knows of each sequence: the number of tokens whose keys and values it
// has, and the pages that they take. Pure. Owner: the engine's thread.
//   sequence 5 has 40 tokens at the worker; the hub computed 3 more rows here: 40 of 43 are known
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "protocol/span_messages.h"

namespace moex {

class SpanSequences {
  public:
    SpanSequences(std::uint32_t num_pages, std::uint32_t page_tokens)
        : num_pages_(num_pages),
          page_tokens_(page_tokens) {}

    std::uint32_t known(std::uint64_t id) const;
    // The worker has the first `num_tokens` tokens of the sequence, and no others.
    void set(std::uint64_t id, std::uint32_t num_tokens);
    // The hub writes rows from `num_tokens` on without the worker.
    void at_most(std::uint64_t id, std::uint32_t num_tokens);
    // Returns true if the worker knew the sequence.
    bool end(std::uint64_t id);
    // Returns true if the worker has pages for these rows.
    bool has_room(std::span<const SpanSequence> sequences) const;

  private:
    std::uint64_t pages_for(std::uint64_t num_tokens) const {
        return (num_tokens + page_tokens_ - 1) / page_tokens_;
    }
    std::uint64_t num_pages_, page_tokens_, pages_used_ = 0;
    std::map<std::uint64_t, std::uint32_t> tokens_;
};

}  // namespace moex
