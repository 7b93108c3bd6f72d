// A device that can record commands and readbacks instead of running them, so that the commands of
// a round can be submitted many times and timed.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "web-worker/gpu/device_decorator.h"

namespace moex::gpu {

class RecordingDevice : public DeviceDecorator {
  public:
    using DeviceDecorator::DeviceDecorator;

    bool holds = false;
    std::vector<Command> commands;  // recorded, not submitted
    std::uint64_t dispatches = 0;   // dispatches of all submissions, recorded or run

    // Runs the recorded readbacks, so that their rounds end. The recorded commands are dropped.
    void release() {
        holds = false;
        commands.clear();
        for (Read& read : std::exchange(reads_, {}))
            device_.read_buffer(read.buffer, read.size_bytes, std::move(read.done));
    }
    // Returns "copy" for a copy, otherwise the name of the kernel.
    std::string name_of(const Command& command) const {
        if (command.kind == Command::Kind::copy) return "copy";
        const auto found = names_.find(command.pipeline.value);
        return found == names_.end() ? std::string() : found->second;
    }

    void create_pipeline(std::string_view kernel, std::span<const KernelConstant> constants,
                         std::function<void(Result<PipelineId>)> done) override {
        device_.create_pipeline(
            kernel, constants,
            [this, name = std::string(kernel), done = std::move(done)](Result<PipelineId> made) {
                if (made.ok()) names_[made->value] = name;
                done(std::move(made));
            });
    }
    void submit(std::span<const Command> submitted) override {
        for (const Command& command : submitted)
            if (command.kind == Command::Kind::dispatch) ++dispatches;
        if (holds)
            commands.insert(commands.end(), submitted.begin(), submitted.end());
        else
            device_.submit(submitted);
    }
    void read_buffer(BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        if (holds)
            reads_.push_back({buffer, size_bytes, std::move(done)});
        else
            device_.read_buffer(buffer, size_bytes, std::move(done));
    }

  private:
    struct Read {
        BufferId buffer;
        std::uint64_t size_bytes;
        std::function<void(Result<ByteView>)> done;
    };
    std::vector<Read> reads_;
    std::unordered_map<std::uint32_t, std::string> names_;
};

}  // namespace moex::gpu
