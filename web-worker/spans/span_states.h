// The recurrent states of a span's sequences on a GPU: which slots and which journal each sequence
// owns, and the run of its next step (web-worker/decoder/step_rows.h). Pure: the owner computes,
// and clears the contents of what is given back.
//
// A step with few rows keeps the state before its rows, and their inputs in the journal, so that
// the next step may begin at any position of these rows. After a step with more rows the next step
// must begin at its end, and so after a state that was brought.
//   sequence 5 has the state after 100 tokens in slot 4, and rows 100 to 102 in its journal. A step
//   with num_before 102 replays two rows, stores the state after them in slot 7, and gives slot 4
//   back; row 102 was rolled back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "protocol/span_messages.h"
#include "web-worker/decoder/step_rows.h"

namespace moex {

class SpanStates {
  public:
    // `sequences_max` 0: the span has no recurrent layers.
    explicit SpanStates(std::uint32_t sequences_max);
    // A sequence has a slot, and a second one in a step.
    static std::uint32_t num_slots(std::uint32_t sequences_max) { return 2 * sequences_max; }

    // What a sequence that has ended leaves, and earlier states: for the owner to clear.
    struct Freed {
        std::vector<std::uint32_t> slots, journals;
    };
    // Returns `done` if begin() can be called for a step of these rows.
    SpanVerdict check(std::span<const SpanSequence> sequences) const;
    // Begins a step: returns the run of each sequence, whose rows follow each other.
    std::vector<DeltaRun> begin(std::span<const SpanSequence> sequences);
    // Returns the slot in which to store the state of `num_tokens` tokens of a sequence, which
    // becomes its only state; nullopt: there is no room for one more sequence.
    std::optional<std::uint32_t> bring(std::uint64_t id, std::uint32_t num_tokens);
    void end(std::uint64_t id, Freed& freed);
    void end_all(Freed& freed);

  private:
    struct Sequence {
        std::uint32_t slot = DeltaRun::no_slot;  // no_slot: the state of no tokens
        std::uint32_t journal = 0;
        std::uint32_t num_tokens = 0, end = 0;  // of the slot; with the rows of the journal
    };
    bool has_room(std::size_t num_new) const { return num_new <= journals_.size(); }
    Sequence& sequence(std::uint64_t id);
    std::uint32_t take_slot();

    std::map<std::uint64_t, Sequence> sequences_;
    std::vector<std::uint32_t> slots_, journals_;  // free ones
    std::set<std::uint32_t> used_;                 // slots that were written and not cleared since
};

}  // namespace moex
