// Which of a worker's experts lie in its memory now, as far as the hub can tell: those that it was
// asked for or told of last, as many as it has slots. A guess: what its memory keeps is the
// worker's own choice. Nothing depends on it but how long an answer is expected to take, and who is
// asked.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

namespace moex {

class SlotGuess {
  public:
    // 0: it told of none, and all that it holds is taken to lie there.
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
    std::map<std::uint64_t, std::uint32_t> by_use_;  // the same, the oldest first
};

}  // namespace moex
