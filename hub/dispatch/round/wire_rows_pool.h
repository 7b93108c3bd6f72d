// Memory for encoded rows, and accounting of the bytes that unsent frames hold.
//
// A frame that shares encoded rows keeps all rows of its round alive, even if the frame carries
// only a few of them. A slow connection would thus hold the memory of many rounds. Therefore each
// connection may hold a limited number of bytes, and all connections together may hold a larger
// limit. Beyond a limit, a frame copies its rows, and they count in the outbox of its connection
// instead. Any thread may use the pool. Lent rows may outlive the pool's other owners.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/wire_frame.h"

namespace moex {

// Bytes of encoded rows that a connection's unsent frames keep alive.
using RowsHeld = std::atomic<std::uint64_t>;

class WireRowsPool : public std::enable_shared_from_this<WireRowsPool> {
  public:
    // Least size of a frame's rows for which sharing pays: a smaller frame is cheaper to copy than
    // to count.
    static constexpr std::uint64_t gathered_bytes_min_default = 32 << 10;
    explicit WireRowsPool(std::uint64_t gathered_bytes_min = gathered_bytes_min_default)
        : gathered_bytes_min_(gathered_bytes_min) {}

    // Encodes x [num_rows, row_size]. The memory returns to the pool when its last owner releases
    // it.
    std::shared_ptr<const WireRows> encode(Dtype dtype, std::span<const float> x,
                                           std::uint32_t row_size);
    // Lends `rows` to a frame that uses only `num_rows` rows. Until the frame is destroyed, all
    // bytes of `rows` count in `held`, the counter of its connection. Returns null if the frame
    // must copy its rows.
    std::shared_ptr<const WireRows> lend(const std::shared_ptr<const WireRows>& rows,
                                         std::size_t num_rows,
                                         const std::shared_ptr<RowsHeld>& held);
    // Total bytes of encoded rows that unsent frames still hold, over all connections.
    std::uint64_t bytes_out() const { return bytes_out_; }
    // Returns how often rows of x were encoded.
    std::uint64_t num_encoded() const { return num_encoded_; }

    // Limits of sharing. A connection that holds no shared rows may always borrow a round of usual
    // size; a connection that is not slow holds none. A connection that already holds some may
    // borrow more only while all connections together hold less than bytes_out_max.
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
