// Shares the one GPU device of a process among its workers. The first lend() opens the device. It
// is closed when the last worker has returned it, and opened again after a loss. The class belongs
// to one thread.
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

    // Lends the device: returns an object that behaves like a device of the caller's own.
    Result<std::unique_ptr<gpu::Device>> lend();
    // Returns the number of the open device. Each opened device has a new number. 0: no device is
    // open.
    std::uint64_t number() const;
    // These functions forward to the open device (gpu::Device).
    void share_memory(ByteView memory);
    void unshare_memory(ByteView memory);

    // Runs the callback of a finished readback. Returns false if no readback is finished. Requires
    // answer_reads(true).
    bool answer_read();
    // If `here`, the owner polls answer_read() for readbacks. Otherwise the device's thread wakes
    // the owner.
    void answer_reads(bool here);

  private:
    struct Opened;
    class Lent;

    const Open open_;
    std::weak_ptr<Opened> opened_;  // the open device; the lent devices own it
    std::uint64_t last_number_ = 0;
};

}  // namespace moex::native
