// Opens the Compute of one worker, tests it with known answers, measures the speed of a GPU, and
// opens it again after a loss. After each loss, the delay before it is opened again grows. A GPU
// that is lost again and again, or that cannot serve, is given up: the worker falls back to the
// processor if it may choose; otherwise `failed` is final. This class owns the Compute. Objects
// with memory on it must free the memory when `lost` is called.
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
        std::function<void()> opened;  // a device was opened; its test with known answers follows
        std::function<void()> ready;   // the device passed the test; its speed is in the status
        // The device and its buffers are lost. The handler calls reopen() or reopen_smaller().
        std::function<void(const gpu::Loss& loss)> lost;
        // The worker cannot serve, because of `reason`.
        std::function<void(std::string reason)> failed;
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
    // Opens the device again. This counts as a fault, so `failed` may be called.
    void reopen(const std::string& reason);
    // Opens the device again with a smaller budget, after it ran out of memory. This does not count
    // as a fault.
    void reopen_smaller(const std::string& reason, std::uint64_t budget_bytes);
    void close();  // no event is called after close()

    // Computes the known answers of experts of this form on a device that is ready. `done` gets
    // device_lost, or an error for people if the device cannot compute this form; it is not called
    // if the device is closed or opened again before.
    void test_form(ExpertForm form, std::function<void(Status)> done);

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
    // The GPU's speed, measured once: a worker opens the same device each time.
    bool measured_ = false;
    bool tested_ = false, reopening_ = false, closed_ = false;
    std::uint32_t devices_opened_ = 0;
    // Number of faults since the worker served for at least a minute without a fault.
    std::uint32_t faults_ = 0;
    double ready_at_ms_ = 0;
    // Number of Computes opened so far: callbacks of an older Compute are ignored.
    std::uint64_t generation_ = 0;
    std::uint64_t retry_timer_ = 0;
    LifeGuard life_;
};

}  // namespace moex
