// Which copies a queue of transfers is given next. Those that somebody waits for go before those
// that were only foreseen, each kind in the order of its calls, or of hurry(); and of the foreseen
// ones no more are under way than keep the link busy, so that a copy that is waited for stands
// behind few.
// Pure; no thread. Requires of every number that ask() gave it.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

class TransferOrder {
  public:
    // While `busy_bytes` or more are under way no foreseen one follows.
    explicit TransferOrder(std::uint64_t busy_bytes) : busy_bytes_(busy_bytes) {}

    // The value: its number, counted from 1.
    std::uint64_t ask(TransferKind kind, std::uint64_t size_bytes);
    // It is waited for from now on, or all of them are. Nothing, where it went already.
    void hurry(std::uint64_t number);
    void hurry_all();

    bool has_next() const;
    // The numbers of those that go now, as they go: the awaited ones, and foreseen ones with them.
    std::vector<std::uint64_t> take(TransferKind up_to);
    // So many of those that went are over, in the order in which they went.
    void over(std::uint64_t count);

    // Where it went, counted from 1; 0: it has not. Of one up to settled(): of any that is over.
    std::uint64_t place(std::uint64_t number) const;
    // All up to this number are over.
    std::uint64_t settled() const { return first_ - 1; }

  private:
    struct Transfer {
        std::uint64_t size_bytes = 0;
        bool is_awaited = false;
        std::uint64_t place = 0;
    };
    Transfer& at(std::uint64_t number) { return transfers_[number - first_]; }
    void go(std::uint64_t number, std::vector<std::uint64_t>& gone);

    const std::uint64_t busy_bytes_;
    std::deque<Transfer> transfers_;                  // not settled, by number
    std::uint64_t first_ = 1;                         // number of the first of them
    std::deque<std::uint64_t> awaited_, prefetches_;  // numbers that have not gone
    std::deque<std::uint64_t> under_way_;             // bytes of each
    std::uint64_t bytes_in_flight_ = 0, num_gone_ = 0, num_over_ = 0;
};

}  // namespace moex::gpu
