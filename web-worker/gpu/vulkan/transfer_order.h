// The order in which copies are submitted to a transfer queue. Awaited copies, which a group waits
// for, go before prefetches. Within each kind the order is that of ask() or hurry(). At most as
// many prefetches are in flight as keep the link busy, so that an awaited copy waits behind few of
// them. Example: ask prefetch 1, prefetch 2, awaited 3, with room for one prefetch: take() gives 3,
// 1. This class is pure (no Vulkan call) and has no thread. Every `number` must be a return value
// of ask().
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

class TransferOrder {
  public:
    // While copies of `busy_bytes` or more in total are in flight, no further prefetch is
    // submitted.
    explicit TransferOrder(std::uint64_t busy_bytes) : busy_bytes_(busy_bytes) {}

    // Adds a copy. Returns its number, counted from 1.
    std::uint64_t ask(TransferKind kind, std::uint64_t size_bytes);
    // Makes one prefetch, or every prefetch, an awaited copy. This does nothing to copies that
    // take() has returned.
    void hurry(std::uint64_t number);
    void hurry_all();

    bool has_next() const;
    // Returns the numbers of the copies to submit now, in order: all awaited copies, and then, if
    // `up_to` is TransferKind::prefetch, prefetches.
    std::vector<std::uint64_t> take(TransferKind up_to);
    // Notes that the oldest `count` copies in flight, in the order of submission, are over.
    void over(std::uint64_t count);

    // Returns the position of a copy in the order of submission, counted from 1; 0: not submitted.
    // For a number up to settled(): the position of some copy that is over.
    std::uint64_t place(std::uint64_t number) const;
    // Returns the number up to which all copies are over.
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
    // Copies that are not known to be over, by number.
    std::deque<Transfer> transfers_;
    std::uint64_t first_ = 1;                         // number of transfers_.front()
    std::deque<std::uint64_t> awaited_, prefetches_;  // numbers of copies not submitted yet
    std::deque<std::uint64_t> under_way_;             // sizes of the copies in flight
    std::uint64_t bytes_in_flight_ = 0, num_gone_ = 0, num_over_ = 0;
};

}  // namespace moex::gpu
