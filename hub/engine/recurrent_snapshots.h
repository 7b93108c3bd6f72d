// Copies of recurrent states at the ends of published pages, so that a text that begins like an
// earlier one goes on from there. A copy has the size of a state whatever the length of the text;
// so copies are made at few places (EngineState::keep_state()), within a budget, and the one that
// was used longest ago leaves first. A copy may have a companion: what other parts keep of the same
// text, e.g. rows for a source of drafts.
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "hub/engine/recurrent_state.h"
#include "hub/engine/state_slots.h"

namespace moex {

// Immutable once it is made.
class SnapshotCompanion {
  public:
    virtual ~SnapshotCompanion() = default;
    virtual std::uint64_t size_bytes() const = 0;
};
using CompanionPtr = std::shared_ptr<const SnapshotCompanion>;
// Makes the companion of a copy at the end of the first `num_tokens` tokens; null: none.
using MakeCompanion = std::function<CompanionPtr(std::uint32_t num_tokens)>;

class RecurrentSnapshots {
  public:
    // A companion has at most `companion_bytes`, which are counted for each copy.
    RecurrentSnapshots(const RecurrentShape& shape, std::uint64_t bytes_max,
                       std::uint64_t companion_bytes);

    bool has(std::uint32_t page) const { return by_page_.contains(page); }
    // Returns the copy at the end of `page`; null if there is none. The copy counts as used now.
    const float* find(std::uint32_t page);
    // Returns the companion of that copy; may be null.
    CompanionPtr companion(std::uint32_t page) const;
    // Copies `state` at its border, which is the end of `page`. Does nothing if the state cannot be
    // copied, or if the budget has no room for one copy. A copy that exists gets a companion if it
    // has none. `make` may be empty.
    void keep(std::uint32_t page, const RecurrentState& state, const MakeCompanion& make);
    // The same where a device stores the states: to keep a copy is to hold its slot.
    StateSlotPtr find_slot(std::uint32_t page);
    void keep(std::uint32_t page, const StateSlotPtr& slot, const MakeCompanion& make);
    // Drops the least recently used copy whose slot has no other holder. Returns false if there is
    // no such copy.
    bool drop_oldest_slot();
    // Bytes of all copies in memory here, and of their companions.
    std::uint64_t used_bytes() const;
    // Forgets the copy at the end of a page that is no longer published.
    void drop(std::uint32_t page);

  private:
    struct Copy {
        std::unique_ptr<float[]> floats;  // null: the copy is in `slot`
        StateSlotPtr slot;
        CompanionPtr companion;
        std::uint64_t used = 0;
    };
    const std::size_t num_floats_, copies_max_;
    std::unordered_map<std::uint32_t, Copy> by_page_;
    std::uint64_t uses_ = 0;
};

}  // namespace moex
