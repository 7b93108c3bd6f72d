// What one worker computes on: opened, tested with known answers, a GPU measured, and opened again
// when it goes away, ever more slowly. A GPU that keeps going away, or that cannot serve, is given
// up: for the processor where the worker may choose, else `failed` is final.
// Owns the Compute. Whoever keeps memory on it lets go of it when `lost` is called.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "protocol/life_guard.h"
#include "web-worker/compute.h"
#include "web-worker/kernel_timing.h"
#include "web-worker/session/status_report.h"

namespace moex {

class DeviceKeeper {
  public:
    struct Events {
        std::function<void()> opened;  // its known answers are next
        std::function<void()> ready;   // it passed them, and its speed is in the status
        // its buffers are gone; answered by reopen() or reopen_smaller()
        std::function<void(const gpu::Loss& loss)> lost;
        std::function<void(std::string reason)> failed;  // it cannot serve
    };
    DeviceKeeper(Platform& platform, StatusReport& report, const WorkerOptions& options,
                 Events events)
        : platform_(platform),
          report_(report),
          options_(options),
          events_(std::move(events)),
          on_processor_(options.backend == WorkerBackend::cpu) {}
    ~DeviceKeeper() { close(); }
    DeviceKeeper(const DeviceKeeper&) = delete;

    void open();
    // counts as a fault; may call `failed`
    void reopen(const std::string& reason);
    // after out of memory: progress, not a fault
    void reopen_smaller(const std::string& reason, std::uint64_t budget_bytes);
    void close();  // nothing is called any more

    Compute* compute() const { return compute_.get(); }
    bool ready() const { return tested_ && !reopening_; }

  private:
    void opened(std::unique_ptr<Compute> compute);
    void test();
    void give_up(std::string reason);
    void measure();
    void serve();
    void lost(const gpu::Loss& loss);
    void reopen_after(double delay_ms);

    Platform& platform_;
    StatusReport& report_;
    const WorkerOptions& options_;
    Events events_;
    std::unique_ptr<Compute> compute_;
    std::unique_ptr<KernelTiming> timing_;
    bool on_processor_;
    bool measured_ = false;  // once: another device of this worker is the same one
    bool tested_ = false, reopening_ = false, closed_ = false;
    std::uint32_t devices_opened_ = 0;
    // since it last served for a good while
    std::uint32_t faults_ = 0;
    double ready_at_ms_ = 0;
    // of what was opened: what an older one still says is dropped
    std::uint64_t generation_ = 0;
    std::uint64_t retry_timer_ = 0;
    LifeGuard life_;
};

}  // namespace moex
