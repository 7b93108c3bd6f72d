// Memory for rows in wire form, and how much of it is out: frames that wait for a slow connection
// keep a whole round's rows alive for the few that they carry. Any thread; what is out may outlive
// the pool's other owners.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/wire_frame.h"

namespace moex {

class WireRowsPool : public std::enable_shared_from_this<WireRowsPool> {
  public:
    // x [num_rows, row_size] in wire form; its memory is given back with the last of its owners.
    std::shared_ptr<const WireRows> encode(Dtype dtype, std::span<const float> x,
                                           std::uint32_t row_size);
    // Of all rows that somebody has.
    std::uint64_t bytes_out() const { return bytes_out_; }
    // Beyond that a frame gets a copy of its rows, which its connection's outbox counts: slow
    // connections pin no more, and the rows of a round.
    bool may_share() const { return bytes_out_ <= bytes_out_max; }

    static constexpr std::uint64_t bytes_out_max = 64 << 20;

  private:
    std::unique_ptr<WireRows> take();
    void give(std::unique_ptr<WireRows> rows);

    std::atomic<std::uint64_t> bytes_out_ = 0;
    std::mutex mutex_;
    std::vector<std::unique_ptr<WireRows>> kept_;
};

}  // namespace moex
