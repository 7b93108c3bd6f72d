// The device of a whole model's bench. It fills weights out of patterns that lie on the GPU
// already, since tens of gigabytes through a tab's heap take minutes and say nothing; it keeps a
// step's commands, so that they can be submitted again and timed; and it can make what the web's
// frameworks make in every step, so that what not making it brings can be measured.
#pragma once

#include <vector>

#include "web-worker/gpu/recording_device.h"

namespace moex {

class TimingDevice : public gpu::RecordingDevice {
  public:
    using RecordingDevice::RecordingDevice;
    ~TimingDevice() override;

    // Bytes that are written from the beginning of one of these come out of its copy on the GPU.
    // The views stay valid until the next call; none: everything is written as it is.
    Status set_patterns(const std::vector<ByteView>& patterns);

    // While set, every dispatch gets a uniform buffer and a bind group of its own, and every
    // readback a staging buffer: made when it is submitted, let go with a later submission.
    // Source: Chen et al., "WeInfer", WWW 2025, section 4.2: what its baseline does.
    bool creates = false;

    std::vector<gpu::Command> step;  // the last submission that began with a dispatch

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
    struct Group {  // what a bind group was made of
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
    std::unordered_map<std::uint32_t, gpu::BufferId> staging_;  // of a readback, until it is read
    Made made_;                                                 // since the last readback
    Made passed_;                                               // the GPU is through with it
    LifeGuard life_;
};

}  // namespace moex
