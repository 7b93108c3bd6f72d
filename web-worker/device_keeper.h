// The GPU of one worker: opened, tested with known answers, and opened again when it goes away.
// Owns the device. Whoever keeps buffers on it lets go of them when `lost` is called.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "web-worker/status_report.h"

namespace moex {

class DeviceKeeper {
  public:
    struct Events {
        std::function<void()> opened;                         // its known answers are next
        std::function<void()> ready;                          // it passed them
        std::function<void(const std::string& reason)> lost;  // its buffers are gone; reopen_later() or give up
        std::function<void(std::string reason)> failed;       // it cannot serve
    };
    DeviceKeeper(Platform& platform, StatusReport& report, Events events) : platform_(platform), report_(report), events_(std::move(events)) {}
    ~DeviceKeeper() { close(); }
    DeviceKeeper(const DeviceKeeper&) = delete;

    void open();
    void reopen_later(const std::string& reason, const std::string& more = {});   // `more`: a sentence for people
    void close();                                             // nothing is called any more

    gpu::Device* device() { return device_.get(); }
    bool ready() const { return tested_ && !reopening_; }
    bool reopening() const { return reopening_; }

  private:
    void test();
    void lost(const std::string& reason);

    Platform& platform_;
    StatusReport& report_;
    Events events_;
    std::unique_ptr<gpu::Device> device_;
    bool tested_ = false, reopening_ = false, closed_ = false;
    std::uint32_t devices_opened_ = 0, reopen_failures_ = 0;
    std::uint64_t generation_ = 0;                            // of the device: what an older one still says is dropped
    std::uint64_t retry_timer_ = 0;
    std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace moex
