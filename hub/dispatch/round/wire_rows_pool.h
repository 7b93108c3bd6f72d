// Memory for rows in wire form, and how much of it is out: frames that wait for a slow connection
// keep a whole round's rows alive for the few that they carry. So each connection may keep a little
// alive, and all together not much more; beyond that a frame is a copy, which its connection's
// outbox counts. Any thread; what is out may outlive the pool's other owners.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/wire_frame.h"

namespace moex {

// Bytes of rows that the frames of one connection keep alive until they are written.
using RowsHeld = std::atomic<std::uint64_t>;

class WireRowsPool : public std::enable_shared_from_this<WireRowsPool> {
  public:
    // Of one frame's rows: less than that is copied sooner than counted.
    static constexpr std::uint64_t gathered_bytes_min_default = 32 << 10;
    explicit WireRowsPool(std::uint64_t gathered_bytes_min = gathered_bytes_min_default)
        : gathered_bytes_min_(gathered_bytes_min) {}

    // x [num_rows, row_size] in wire form; its memory is given back with the last of its owners.
    std::shared_ptr<const WireRows> encode(Dtype dtype, std::span<const float> x,
                                           std::uint32_t row_size);
    // `rows` for a frame that gathers `num_rows` of them: until that ends, all of `rows` count in
    // its connection's `held`. Null: it is to copy them.
    std::shared_ptr<const WireRows> lend(const std::shared_ptr<const WireRows>& rows,
                                         std::size_t num_rows,
                                         const std::shared_ptr<RowsHeld>& held);
    // Of all rows that somebody has.
    std::uint64_t bytes_out() const { return bytes_out_; }
    // How often x was encoded.
    std::uint64_t num_encoded() const { return num_encoded_; }

    // A connection that holds nothing, as one that is not slow does, is lent a round of usual size
    // however much the others hold; one that holds something, as long as all hold less than that.
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
