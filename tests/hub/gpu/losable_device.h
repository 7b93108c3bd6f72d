// A GPU that a test can lose.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "hub/commands/gpu/gpu_device.h"
#include "web-worker/gpu/device_decorator.h"

namespace moex {

// A test's instructions to its devices; only the thread that uses the devices reads and writes
// this.
struct Fate {
    bool next_submit_breaks = false;
    bool every_submit_breaks = false;
    std::uint32_t devices = 100;  // number of devices that can still be opened
    std::uint32_t opened = 0;
};

// Works like the real device until the test breaks it. From then on no work runs and no reading
// returns, as after a driver reset.
class LosableDevice : public gpu::DeviceDecorator {
  public:
    LosableDevice(std::unique_ptr<gpu::Device> device, gpu::PostFunction post, Fate& fate)
        : DeviceDecorator(*device),
          owned_(std::move(device)),
          post_(std::move(post)),
          fate_(fate) {}

    void submit(std::span<const gpu::Command> commands) override {
        is_lost_ = is_lost_ || fate_.every_submit_breaks ||
                   std::exchange(fate_.next_submit_breaks, false);
        if (!is_lost_) device_.submit(commands);
    }
    void write_buffer(gpu::BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) override {
        if (!is_lost_) device_.write_buffer(buffer, offset_bytes, bytes);
    }
    void read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        if (!is_lost_) return device_.read_buffer(buffer, size_bytes, std::move(done));
        post_([done = std::move(done)] { done(Error{ErrorCode::device_lost, "it broke"}); });
    }

  private:
    std::unique_ptr<gpu::Device> owned_;
    gpu::PostFunction post_;
    Fate& fate_;
    bool is_lost_ = false;
};

// Returns a function for GpuStepsOptions::open_device. `fate` outlives the devices.
inline std::function<Result<std::unique_ptr<gpu::Device>>(const std::string& name,
                                                          gpu::PostFunction post)>
losable(Fate& fate) {
    return [&fate](const std::string& name,
                   gpu::PostFunction post) -> Result<std::unique_ptr<gpu::Device>> {
        if (fate.opened == fate.devices) return Error{ErrorCode::unavailable, "none is left"};
        ++fate.opened;
        MOEX_ASSIGN(device, open_gpu_device(name, post));
        return std::unique_ptr<gpu::Device>(
            std::make_unique<LosableDevice>(std::move(device), std::move(post), fate));
    };
}

}  // namespace moex
