// A device that forwards every call to another device. A class that observes a device, delays its
// commands, or makes it fail derives from this one and overrides a few calls.
#pragma once

#include <utility>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

class DeviceDecorator : public Device {
  public:
    explicit DeviceDecorator(Device& device) : device_(device) {}

    const AdapterInfo& adapter() const override { return device_.adapter(); }
    Result<BufferId> create_buffer(std::uint64_t size_bytes, BufferUsage usage,
                                   std::string_view label) override {
        return device_.create_buffer(size_bytes, usage, label);
    }
    void destroy_buffer(BufferId buffer) override { device_.destroy_buffer(buffer); }
    void write_buffer(BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) override {
        device_.write_buffer(buffer, offset_bytes, bytes);
    }
    Status share_memory(ByteView memory) override { return device_.share_memory(memory); }
    void unshare_memory(ByteView memory) override { device_.unshare_memory(memory); }
    std::uint64_t transfer(BufferId buffer, std::uint64_t offset_bytes, ByteView bytes,
                           TransferKind kind, std::function<void()> done) override {
        return device_.transfer(buffer, offset_bytes, bytes, kind, std::move(done));
    }
    bool is_shared() const override { return device_.is_shared(); }
    void await_transfer(std::uint64_t number) override { device_.await_transfer(number); }
    bool transferred(std::uint64_t number, bool wait) override {
        return device_.transferred(number, wait);
    }
    void create_pipeline(std::string_view kernel, std::span<const KernelConstant> constants,
                         std::function<void(Result<PipelineId>)> done) override {
        device_.create_pipeline(kernel, constants, std::move(done));
    }
    Result<BindGroupId> create_bind_group(PipelineId pipeline,
                                          std::span<const Binding> bindings) override {
        return device_.create_bind_group(pipeline, bindings);
    }
    void destroy_bind_group(BindGroupId bind_group) override {
        device_.destroy_bind_group(bind_group);
    }
    void submit(std::span<const Command> commands) override { device_.submit(commands); }
    void read_buffer(BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        device_.read_buffer(buffer, size_bytes, std::move(done));
    }
    void set_owner_answers(bool here) override { device_.set_owner_answers(here); }
    bool answer_read(bool wait) override { return device_.answer_read(wait); }
    void expect_work(double within_ms) override { device_.expect_work(within_ms); }
    void on_lost(std::function<void(Loss)> handler) override {
        device_.on_lost(std::move(handler));
    }
    DeviceCounters counters() const override { return device_.counters(); }
    double gpu_us() const override { return device_.gpu_us(); }

  protected:
    Device& device_;
};

}  // namespace moex::gpu
