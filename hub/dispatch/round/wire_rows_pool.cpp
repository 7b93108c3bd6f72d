#include "hub/dispatch/round/wire_rows_pool.h"

#include <utility>

namespace moex {
namespace {
// Bounds of the buffers that the pool keeps: two micro-batches in two encodings each. Buffers
// larger than those of a prefill are not kept.
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
    ++num_encoded_;
    return {rows.release(), [pool = shared_from_this()](WireRows* done) {
                pool->give(std::unique_ptr<WireRows>(done));
            }};
}

bool WireRowsPool::may_lend(std::uint64_t bytes, std::uint64_t held) const {
    const bool few_are_out = bytes_out_ <= bytes_out_max;
    if (held == 0) return bytes <= held_bytes_max || few_are_out;
    return held + bytes <= held_bytes_max && few_are_out;
}

std::shared_ptr<const WireRows> WireRowsPool::lend(const std::shared_ptr<const WireRows>& rows,
                                                   std::size_t num_rows,
                                                   const std::shared_ptr<RowsHeld>& held) {
    const std::uint64_t bytes = rows->bytes.size();
    if (num_rows * rows->value_bytes() < gathered_bytes_min_ || !may_lend(bytes, *held))
        return nullptr;

    *held += bytes;
    return {rows.get(), [rows, held, bytes](const WireRows*) { *held -= bytes; }};
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
