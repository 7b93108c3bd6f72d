// An estimate of the experts that a worker has in its GPU memory now (its slots).
//
// The hub assumes that the worker keeps a least-recently-used cache. The estimate therefore
// contains the units that the hub most recently requested or sent in a hint, as many as the worker
// has slots. The estimate may be wrong, because the worker itself decides what its memory keeps.
// The hub uses the estimate only to predict how long an answer takes, and to choose between
// holders.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

namespace moex {

class SlotGuess {
  public:
    // With `slots` 0 the worker reports no slots. The estimate is then that all units that it holds
    // are in its memory.
    void set_slots(std::uint32_t slots) {
        slots_ = slots;
        shrink();
    }
    bool holds(std::uint32_t unit) const { return slots_ == 0 || used_at_.contains(unit); }
    void use(std::uint32_t unit) {
        if (slots_ == 0) return;
        const auto [at, is_new] = used_at_.try_emplace(unit, 0);
        if (!is_new) by_use_.erase(at->second);
        at->second = ++clock_;
        by_use_[clock_] = unit;
        shrink();
    }

  private:
    void shrink() {
        while (used_at_.size() > slots_) {
            used_at_.erase(by_use_.begin()->second);
            by_use_.erase(by_use_.begin());
        }
    }

    std::uint32_t slots_ = 0;
    std::uint64_t clock_ = 0;
    std::unordered_map<std::uint32_t, std::uint64_t> used_at_;
    // the entries of `used_at_`, least recently used first
    std::map<std::uint64_t, std::uint32_t> by_use_;
};

}  // namespace moex
