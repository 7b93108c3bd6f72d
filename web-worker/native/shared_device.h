// The device of a process, lent to each of its workers: opened by the first that asks, closed when
// the last has given it back, opened anew when it was lost. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "web-worker/gpu/device.h"

namespace moex::native {

class SharedDevice {
  public:
    using Open = std::function<Result<std::unique_ptr<gpu::Device>>()>;

    explicit SharedDevice(Open open) : open_(std::move(open)) {}
    SharedDevice(const SharedDevice&) = delete;

    // Behaves as a device of its own.
    Result<std::unique_ptr<gpu::Device>> lend();
    // Another device than before has another number; 0: none is open.
    std::uint64_t number() const;
    // gpu::Device's, of the one that is open.
    void share_memory(ByteView memory);
    void unshare_memory(ByteView memory);

    // Calls back whose bytes have been read, if any are: while answer_reads(true).
    bool answer_read();
    // Whether the owner looks for what the GPU has read, or is woken for it.
    void answer_reads(bool here);

  private:
    struct Opened;
    class Lent;

    const Open open_;
    std::weak_ptr<Opened> opened_;  // by those that it is lent to
    std::uint64_t last_number_ = 0;
};

}  // namespace moex::native
