// Copies of recurrent states at the ends of published pages, so that a text that begins like an
// earlier one goes on from there. A copy has the size of a state whatever the length of the text;
// so copies are made at few places (EngineState::keep_state()), within a budget, and the one that
// was used longest ago leaves first.
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "hub/engine/recurrent_state.h"

namespace moex {

class RecurrentSnapshots {
  public:
    RecurrentSnapshots(const RecurrentShape& shape, std::uint64_t bytes_max);

    bool has(std::uint32_t page) const { return by_page_.contains(page); }
    // Returns the copy at the end of `page`; null if there is none. The copy counts as used now.
    const float* find(std::uint32_t page);
    // Copies `state` at its border, which is the end of `page`. Does nothing if the state cannot be
    // copied, or if the budget has no room for one copy.
    void keep(std::uint32_t page, const RecurrentState& state);
    // Forgets the copy at the end of a page that is no longer published.
    void drop(std::uint32_t page);

  private:
    struct Copy {
        std::unique_ptr<float[]> floats;
        std::uint64_t used = 0;
    };
    const std::size_t num_floats_, copies_max_;
    std::unordered_map<std::uint32_t, Copy> by_page_;
    std::uint64_t uses_ = 0;
};

}  // namespace moex
