// The device of a whole model's bench. It fills weights from patterns that already reside on the
// GPU, because copying tens of gigabytes through a tab's heap would take minutes and add no
// information. It keeps a step's commands, so that they can be submitted again and timed. It can
// also create the objects that other web frameworks create in every step, so that the gain of reuse
// can be measured.
#pragma once

#include <vector>

#include "protocol/life_guard.h"
#include "web-worker/gpu/recording_device.h"

namespace moex {

// Wraps a device for the timing of a whole model.
class TimingDevice : public gpu::RecordingDevice {
  public:
    using RecordingDevice::RecordingDevice;
    ~TimingDevice() override;

    // Uploads `patterns` to the GPU. A later write whose bytes equal the beginning of a pattern is
    // copied from the uploaded pattern. The views must stay valid until the next call. With no
    // patterns, all bytes are written directly.
    Status set_patterns(const std::vector<ByteView>& patterns);

    // While true, every dispatch gets a uniform buffer and a bind group of its own, and every
    // readback a staging buffer. They are created when the work is submitted and released with a
    // later submission.
    // Source: Chen et al., "WeInfer", WWW 2025, section 4.2: the behaviour of its baseline.
    bool creates = false;

    std::vector<gpu::Command> step;  // commands of the last submission that began with a dispatch

    void write_buffer(gpu::BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) override;
    Result<gpu::BufferId> create_buffer(std::uint64_t size_bytes, gpu::BufferUsage usage,
                                        std::string_view label) override;
    void destroy_buffer(gpu::BufferId buffer) override;
    Result<gpu::BindGroupId> create_bind_group(gpu::PipelineId pipeline,
                                               std::span<const gpu::Binding> bindings) override;
    void submit(std::span<const gpu::Command> commands) override;
    void read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override;

  private:
    struct Pattern {
        ByteView bytes;
        gpu::BufferId buffer;
    };
    struct Group {  // arguments that created a bind group
        gpu::PipelineId pipeline;
        std::vector<gpu::Binding> bindings;
    };
    struct Made {
        std::vector<gpu::BufferId> buffers;
        std::vector<gpu::BindGroupId> groups;
    };
    void make_for(gpu::Command& command);
    void let_go(Made& made);
    void drop_patterns();

    std::vector<Pattern> patterns_;
    std::unordered_map<std::uint32_t, Group> groups_;
    std::unordered_map<std::uint32_t, std::uint64_t> readback_bytes_;
    // Readback buffer -> its staging buffer, until the data is read.
    std::unordered_map<std::uint32_t, gpu::BufferId> staging_;
    Made made_;    // objects created since the last readback
    Made passed_;  // objects that the GPU no longer uses
    LifeGuard life_;
};

}  // namespace moex
