// The recurrent states of sequences whose device stores them in memory of its own, such as a GPU
// (step_device.h): the numbers of the places, and which text each place belongs to. The device
// computes, and moves no state except by a step.
//
// A slot has the state of a text after some number of tokens, and is never changed once the step
// that wrote it has ended. A step reads one slot and writes another one. So a step that fails
// changes nothing; and to keep a state for later texts, or to begin several texts with it, is to
// hold its slot.
//   100 tokens in slot 4; a step of one row:   reads slot 4, writes slot 7, and lets slot 4 go
// A step whose last rows may be rolled back (drafted tokens) writes the state before its rows, and
// keeps the inputs of its rows in the sequence's journal. The next step replays those rows that
// were not rolled back. A row of a journal has a hundredth of the bytes of a state, and no layer
// but the gated delta rules computes it again.
//   100 tokens in slot 4; rows of 100 to 103 of which 103 is rolled back:
//       slot 4, journal 100 101 102;   the next step replays three rows, then computes row 103
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace moex {

// The sizes of the states that a device stores.
struct StateSlotSizes {
    std::uint32_t sequences_max = 0;  // 0: the device stores no states
    std::uint32_t copies_max = 0;     // states that are kept for later texts
    std::uint64_t slot_bytes = 0;
    std::uint64_t journal_bytes = 0;  // of a sequence's journal

    // A sequence has one state, and a second one in a step.
    std::uint32_t num_slots() const { return 2 * sequences_max + copies_max; }
    std::uint64_t all_bytes() const {
        return num_slots() * slot_bytes + sequences_max * journal_bytes;
    }
};

class StateSlots;

// A slot that is in use. The last holder frees it.
class StateSlot {
  public:
    StateSlot(StateSlots& slots, std::uint32_t number, std::uint32_t num_tokens, bool is_copy)
        : number(number),
          num_tokens(num_tokens),
          is_copy(is_copy),
          slots_(slots) {}
    ~StateSlot();
    StateSlot(const StateSlot&) = delete;

    const std::uint32_t number;
    const std::uint32_t num_tokens;  // of the text whose state it is
    bool is_copy;                    // counted as a copy, not as the state of a sequence

  private:
    StateSlots& slots_;
};
using StateSlotPtr = std::shared_ptr<StateSlot>;

class StateSlots {
  public:
    // `evict` frees the copy that was used longest ago, and returns false if there is none.
    StateSlots(const StateSlotSizes& sizes, std::function<bool()> evict);

    const StateSlotSizes& sizes() const { return sizes_; }
    // Returns a slot for a sequence's state, of which each sequence has at most two.
    StateSlotPtr take(std::uint32_t num_tokens);
    // Returns a slot for a copy; null if there is no room, even without the oldest ones.
    StateSlotPtr take_copy(std::uint32_t num_tokens);
    // Counts a slot as a copy from now on. Returns false if there is no room.
    bool make_copy(StateSlot& slot);
    std::uint32_t take_journal();
    void give_journal(std::uint32_t number) { free_journals_.push_back(number); }
    // Sequences that run hold copies, too: of their latest page's end. If many do, each lets its
    // copy go at its next step, so that half of the room is for texts that have ended.
    bool has_many_borders() const { return 2 * num_borders_ >= sizes_.copies_max; }
    void count_border(int change) { num_borders_ += static_cast<std::uint32_t>(change); }

    std::uint64_t state_bytes() const;  // of the states of sequences, with their journals
    std::uint64_t copy_bytes() const { return num_copies_ * sizes_.slot_bytes; }

  private:
    friend class StateSlot;
    StateSlotPtr take(std::uint32_t num_tokens, bool is_copy);
    bool find_room_for_copy();

    const StateSlotSizes sizes_;
    const std::function<bool()> evict_;
    std::vector<std::uint32_t> free_, free_journals_;
    std::uint32_t num_copies_ = 0, num_borders_ = 0;
};

// The rows of a sequence in a pass of a step, and the slots that they read and write.
struct StateRun {
    StateSlotPtr from;                // null: the text begins
    StateSlotPtr to[2];               // null: nothing is stored
    std::uint32_t after[2] = {0, 0};  // rows until each of them is stored, with the replayed ones
    std::uint32_t position = 0;       // of the first replayed row
    std::uint32_t num_replayed = 0;
    bool keeps_rows = false;  // in the journal
};

// The state of one sequence.
class SlotState {
  public:
    // A copy of the state is kept at multiples of `page_tokens`, as far as there is room.
    SlotState(StateSlots& slots, std::uint32_t page_tokens);
    ~SlotState();
    SlotState(const SlotState&) = delete;

    // Begins a step of `num_rows` rows after the tokens so far.
    void begin_step(std::uint32_t num_rows);
    // Returns what to do for the next `num_rows` rows of the step, in the order of positions.
    StateRun next_run(std::uint32_t num_rows);
    std::uint32_t journal() const { return journal_.value_or(0); }
    void commit();
    void abandon_step();
    // Goes back to `num_tokens` tokens; from kept_from() on. An earlier position than that is 0.
    std::uint32_t kept_from() const { return slot_ ? slot_->num_tokens : 0; }
    // The state after kept_from() tokens; null: that of no tokens. Later ones are in the journal.
    const StateSlotPtr& latest() const { return slot_; }
    void roll_back(std::uint32_t num_tokens);
    // The latest state at the end of a page; null if none is kept.
    const StateSlotPtr& border() const { return border_; }
    // Becomes the state of the text of a slot.
    void restore(StateSlotPtr slot);

  private:
    void choose_border(std::uint32_t end);
    void set_border(StateSlotPtr slot);

    StateSlots& slots_;
    const std::uint32_t page_tokens_;
    StateSlotPtr slot_;      // null: the state of no tokens
    StateSlotPtr border_;    // always a copy
    std::uint32_t end_ = 0;  // tokens; those behind slot_ are in the journal
    std::optional<std::uint32_t> journal_;

    // of the current step
    StateSlotPtr next_, next_border_;
    std::uint32_t first_ = 0, num_rows_ = 0, done_ = 0;
    bool may_roll_back_ = false;
    bool is_stored_ = false;  // next_ has a state by now, after stored_at_ tokens
    std::uint32_t stored_at_ = 0;
};

}  // namespace moex
