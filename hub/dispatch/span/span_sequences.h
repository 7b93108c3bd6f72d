// What the holder of a span knows of each sequence: the number of tokens whose keys and values it
// has, the pages that they take, and from which position on its recurrent states can go on. What
// the worker has of an ended sequence stays there for a text that continues it, as long as there is
// room. Pure.
// Owner: the engine's thread.
//   sequence 5 has 40 tokens at the worker; the hub computed 3 more rows here: 40 of 43 are known
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "hub/base/clock.h"
#include "protocol/span_messages.h"

namespace moex {

class SpanSequences {
  public:
    // `sequences_max` is the limit of sequences; 0: the pages are the only limit.
    SpanSequences(std::uint32_t num_pages, std::uint32_t page_tokens,
                  std::uint32_t sequences_max = 0)
        : num_pages_(num_pages),
          page_tokens_(page_tokens),
          sequences_max_(sequences_max) {}

    std::uint32_t known(std::uint64_t id) const;
    // The worker has the first `num_tokens` tokens of the sequence, and no others.
    void set(std::uint64_t id, std::uint32_t num_tokens);
    // The worker got the keys and values of the first `num_tokens` tokens, but not their states.
    void set_without_states(std::uint64_t id, std::uint32_t num_tokens) {
        set(id, num_tokens);
        sequences_[id].states_from = no_states;
    }
    // The worker's recurrent states can go on at any position from `first` on, up to known().
    void keep_states_from(std::uint64_t id, std::uint32_t first);
    // Returns true if they can go on behind the first `num_tokens` tokens.
    bool has_state(std::uint64_t id, std::uint32_t num_tokens) const;
    // The worker may not have rows from `num_tokens` on that were sent to it, nor their states.
    void doubt(std::uint64_t id, std::uint32_t num_tokens);
    // The hub writes rows from `num_tokens` on without the worker.
    void at_most(std::uint64_t id, std::uint32_t num_tokens);
    // The sequence has ended, and the worker forgets it. Returns true if it knew it.
    bool end(std::uint64_t id);
    // The sequence has ended. What the worker has of it stays until it is dropped.
    void keep(std::uint64_t id, TimePoint now);
    // Another one goes on under its number, of which the worker knows `num_tokens` tokens at most.
    void resume(std::uint64_t id, std::uint32_t num_tokens);
    // Returns the sequence that ended first, and counts its pages as free; nullopt if none ended
    // before `before`. The worker must forget it.
    std::optional<std::uint64_t> drop_ended(TimePoint before = TimePoint::max());
    // Returns true if the worker has pages for these rows.
    bool has_room(std::span<const SpanSequence> sequences) const;
    // Returns true if the worker would have pages for these rows after all ended sequences were
    // dropped.
    bool has_room_without_ended(std::span<const SpanSequence> sequences) const;

  private:
    bool fit(std::span<const SpanSequence> sequences, std::uint64_t pages_used,
             std::uint64_t num_sequences) const;
    std::uint64_t pages_for(std::uint64_t num_tokens) const {
        return (num_tokens + page_tokens_ - 1) / page_tokens_;
    }
    static constexpr std::uint32_t no_states = ~0u;
    struct Sequence {
        std::uint32_t num_tokens = 0, states_from = no_states;
        std::uint64_t pages = 0;  // that the worker has, until it gets another frame
        std::uint64_t end = 0;    // ends are numbered; 0: the sequence has not ended
    };
    struct Ended {
        std::uint64_t id = 0;
        TimePoint at{};
    };
    void take_back(Sequence& sequence);

    std::uint64_t num_pages_, page_tokens_, pages_used_ = 0, pages_kept_ = 0, num_ends_ = 0;
    std::uint32_t sequences_max_;
    std::map<std::uint64_t, Sequence> sequences_;
    std::map<std::uint64_t, Ended> kept_;  // ended ones, by the number of the end
};

}  // namespace moex
