#include "web-worker/gpu/vulkan/transfer_order.h"

#include <algorithm>

#include "protocol/check.h"

namespace moex::gpu {

std::uint64_t TransferOrder::ask(TransferKind kind, std::uint64_t size_bytes) {
    const bool is_awaited = kind == TransferKind::awaited;
    transfers_.push_back({size_bytes, is_awaited});
    const std::uint64_t number = first_ + transfers_.size() - 1;
    (is_awaited ? awaited_ : prefetches_).push_back(number);
    return number;
}

void TransferOrder::hurry(std::uint64_t number) {
    if (number < first_ || at(number).is_awaited || at(number).place > 0) return;
    at(number).is_awaited = true;
    awaited_.push_back(number);
    prefetches_.erase(std::lower_bound(prefetches_.begin(), prefetches_.end(), number));
}

void TransferOrder::hurry_all() {
    for (const std::uint64_t number : prefetches_) at(number).is_awaited = true;
    awaited_.insert(awaited_.end(), prefetches_.begin(), prefetches_.end());
    prefetches_.clear();
}

bool TransferOrder::has_next() const {
    return !awaited_.empty() || (!prefetches_.empty() && bytes_in_flight_ < busy_bytes_);
}

std::vector<std::uint64_t> TransferOrder::take(TransferKind up_to) {
    std::vector<std::uint64_t> gone;
    for (; !awaited_.empty(); awaited_.pop_front()) go(awaited_.front(), gone);
    for (; up_to == TransferKind::prefetch && has_next(); prefetches_.pop_front())
        go(prefetches_.front(), gone);
    return gone;
}

void TransferOrder::go(std::uint64_t number, std::vector<std::uint64_t>& gone) {
    Transfer& transfer = at(number);
    transfer.place = ++num_gone_;
    under_way_.push_back(transfer.size_bytes);
    bytes_in_flight_ += transfer.size_bytes;
    gone.push_back(number);
}

void TransferOrder::over(std::uint64_t count) {
    for (; num_over_ < std::min(count, num_gone_); ++num_over_) {
        bytes_in_flight_ -= under_way_.front();
        under_way_.pop_front();
    }
    while (!transfers_.empty() && transfers_.front().place > 0 &&
           transfers_.front().place <= num_over_) {
        transfers_.pop_front();
        ++first_;
    }
}

std::uint64_t TransferOrder::place(std::uint64_t number) const {
    MOEX_CHECK(number < first_ + transfers_.size(), "a copy without a number of ask()");
    return number < first_ ? num_over_ : transfers_[number - first_].place;
}

}  // namespace moex::gpu
