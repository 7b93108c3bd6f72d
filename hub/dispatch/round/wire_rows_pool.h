// Memory for encoded rows, and accounting of the bytes that unsent frames hold.
//
// A frame that shares rows keeps all rows of its round alive, even if it carries only a few. A slow
// connection would thus hold the memory of many rounds. Therefore each connection may hold a
// limited number of bytes, and all connections together may hold a larger limit. Beyond a limit, a
// frame copies its rows, and the outbox of its connection counts them. Any thread may use the pool;
// lent rows may outlive the pool's other owners.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/wire_frame.h"

namespace moex {

// Bytes of rows that a connection's unsent frames keep alive.
using RowsHeld = std::atomic<std::uint64_t>;

class WireRowsPool : public std::enable_shared_from_this<WireRowsPool> {
  public:
    // Minimum size of a frame's rows for sharing: a smaller frame is cheaper to copy than to count.
    static constexpr std::uint64_t gathered_bytes_min_default = 32 << 10;
    explicit WireRowsPool(std::uint64_t gathered_bytes_min = gathered_bytes_min_default)
        : gathered_bytes_min_(gathered_bytes_min) {}

    // Encodes x [num_rows, row_size]. The memory returns to the pool when its last owner ends.
    std::shared_ptr<const WireRows> encode(Dtype dtype, std::span<const float> x,
                                           std::uint32_t row_size);
    // Lends `rows` to a frame that uses only `num_rows` rows. Until the frame ends, all bytes of
    // `rows` count in its connection's `held`. Returns null if the frame must copy its rows.
    std::shared_ptr<const WireRows> lend(const std::shared_ptr<const WireRows>& rows,
                                         std::size_t num_rows,
                                         const std::shared_ptr<RowsHeld>& held);
    // Total bytes of encoded rows that unsent frames still hold, over all connections.
    std::uint64_t bytes_out() const { return bytes_out_; }
    // How often x was encoded.
    std::uint64_t num_encoded() const { return num_encoded_; }

    // A connection that holds nothing, which is the case for one that is not slow, may always
    // borrow a round of usual size. A connection that holds something may borrow only while all
    // connections together hold less than bytes_out_max.
    static constexpr std::uint64_t held_bytes_max = 8 << 20, bytes_out_max = 64 << 20;

  private:
    bool may_lend(std::uint64_t bytes, std::uint64_t held) const;
    std::unique_ptr<WireRows> take();
    void give(std::unique_ptr<WireRows> rows);

    const std::uint64_t gathered_bytes_min_;
    std::atomic<std::uint64_t> bytes_out_ = 0, num_encoded_ = 0;
    std::mutex mutex_;
    std::vector<std::unique_ptr<WireRows>> kept_;
};

}  // namespace moex
