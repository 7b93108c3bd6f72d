#include "hub/dispatch/wire_rows_pool.h"

#include <utility>

namespace moex {
namespace {
// Two micro-batches in two forms each; what is larger than a prefill's is not kept.
constexpr std::size_t kept_max = 4, kept_bytes_max = 4 << 20;
}  // namespace

std::shared_ptr<const WireRows> WireRowsPool::encode(Dtype dtype, std::span<const float> x,
                                                     std::uint32_t row_size) {
    std::unique_ptr<WireRows> rows = take();
    rows->dtype = dtype;
    rows->row_size = row_size;
    rows->bytes.resize(wire_rows_bytes(dtype, x.size() / row_size, row_size));
    encode_rows(dtype, x, row_size, rows->bytes);
    bytes_out_ += rows->bytes.size();
    return {rows.release(), [pool = shared_from_this()](WireRows* done) {
                pool->give(std::unique_ptr<WireRows>(done));
            }};
}

std::unique_ptr<WireRows> WireRowsPool::take() {
    const std::lock_guard lock(mutex_);
    if (kept_.empty()) return std::make_unique<WireRows>();
    std::unique_ptr<WireRows> rows = std::move(kept_.back());
    kept_.pop_back();
    return rows;
}

void WireRowsPool::give(std::unique_ptr<WireRows> rows) {
    bytes_out_ -= rows->bytes.size();
    const std::lock_guard lock(mutex_);
    if (kept_.size() < kept_max && rows->bytes.capacity() <= kept_bytes_max)
        kept_.push_back(std::move(rows));
}

}  // namespace moex
