#include "web-worker/decoder/timing_device.h"

#include <algorithm>
#include <array>

namespace moex {
namespace {

constexpr std::uint64_t uniform_bytes = 64;  // size of a uniform buffer, as an operator reads it

bool is_dispatch(const gpu::Command& command) {
    return command.kind == gpu::Command::Kind::dispatch;
}

template <class Id>
void append(std::vector<Id>& to, const std::vector<Id>& ids) {
    to.insert(to.end(), ids.begin(), ids.end());
}

}  // namespace

TimingDevice::~TimingDevice() {
    let_go(passed_);
    let_go(made_);
    drop_patterns();
}

void TimingDevice::drop_patterns() {
    for (const Pattern& pattern : patterns_) device_.destroy_buffer(pattern.buffer);
    patterns_.clear();
}

Status TimingDevice::set_patterns(const std::vector<ByteView>& patterns) {
    drop_patterns();
    for (const ByteView bytes : patterns) {
        MOEX_ASSIGN(buffer,
                    device_.create_buffer(bytes.size(), gpu::BufferUsage::storage, "pattern"));
        device_.write_buffer(buffer, 0, bytes);
        patterns_.push_back({bytes, buffer});
    }
    return {};
}

void TimingDevice::write_buffer(gpu::BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) {
    const auto pattern = std::find_if(patterns_.begin(), patterns_.end(), [&](const Pattern& one) {
        return one.bytes.data() == bytes.data() && bytes.size() <= one.bytes.size();
    });
    if (pattern == patterns_.end()) return device_.write_buffer(buffer, offset_bytes, bytes);

    gpu::Command copy{.kind = gpu::Command::Kind::copy,
                      .source = pattern->buffer,
                      .target = buffer,
                      .target_offset_bytes = offset_bytes,
                      .size_bytes = bytes.size()};
    device_.submit(std::span(&copy, 1));
}

Result<gpu::BufferId> TimingDevice::create_buffer(std::uint64_t size_bytes, gpu::BufferUsage usage,
                                                  std::string_view label) {
    MOEX_ASSIGN(buffer, device_.create_buffer(size_bytes, usage, label));
    if (usage == gpu::BufferUsage::readback) readback_bytes_[buffer.value] = size_bytes;
    return buffer;
}

void TimingDevice::destroy_buffer(gpu::BufferId buffer) {
    readback_bytes_.erase(buffer.value);  // a new buffer may get this number
    device_.destroy_buffer(buffer);
}

Result<gpu::BindGroupId> TimingDevice::create_bind_group(gpu::PipelineId pipeline,
                                                         std::span<const gpu::Binding> bindings) {
    MOEX_ASSIGN(group, device_.create_bind_group(pipeline, bindings));
    groups_[group.value] = {pipeline, {bindings.begin(), bindings.end()}};
    return group;
}

void TimingDevice::submit(std::span<const gpu::Command> commands) {
    if (!commands.empty() && is_dispatch(commands.front()))
        step.assign(commands.begin(), commands.end());
    if (!creates) return RecordingDevice::submit(commands);

    let_go(passed_);
    std::vector<gpu::Command> own(commands.begin(), commands.end());
    for (gpu::Command& command : own) make_for(command);
    RecordingDevice::submit(own);
}

// Creates the objects of `command` anew. If an object cannot be created (the device is lost), the
// command is unchanged.
void TimingDevice::make_for(gpu::Command& command) {
    if (is_dispatch(command)) {
        const auto uniform = device_.create_buffer(uniform_bytes, gpu::BufferUsage::uniform, "own");
        if (!uniform.ok()) return;
        constexpr std::array<std::byte, uniform_bytes> sizes{};
        device_.write_buffer(*uniform, 0, sizes);
        made_.buffers.push_back(*uniform);

        const auto known = groups_.find(command.bind_group.value);
        if (known == groups_.end()) return;
        const auto group = device_.create_bind_group(known->second.pipeline,
                                                     known->second.bindings);
        if (!group.ok()) return;
        made_.groups.push_back(*group);
        command.bind_group = *group;
        return;
    }

    const auto readback = readback_bytes_.find(command.target.value);
    if (readback == readback_bytes_.end()) return;
    gpu::BufferId& staging = staging_[command.target.value];
    if (staging.value == 0) {
        const auto buffer = device_.create_buffer(readback->second, gpu::BufferUsage::readback,
                                                  "own");
        if (!buffer.ok()) return;
        staging = *buffer;
        made_.buffers.push_back(*buffer);
    }
    command.target = staging;
}

void TimingDevice::read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                               std::function<void(Result<ByteView>)> done) {
    const auto staging = staging_.find(buffer.value);
    if (staging != staging_.end()) {
        buffer = staging->second;
        staging_.erase(staging);
    }
    if (made_.buffers.empty()) return RecordingDevice::read_buffer(buffer, size_bytes, done);

    RecordingDevice::read_buffer(buffer, size_bytes,
                                 [this, made = std::exchange(made_, {}), done = std::move(done),
                                  life = life_.watch()](Result<ByteView> bytes) {
                                     if (life.alive()) {
                                         append(passed_.buffers, made.buffers);
                                         append(passed_.groups, made.groups);
                                     }
                                     done(std::move(bytes));
                                 });
}

void TimingDevice::let_go(Made& made) {
    for (const gpu::BufferId buffer : made.buffers) device_.destroy_buffer(buffer);
    for (const gpu::BindGroupId group : made.groups) device_.destroy_bind_group(group);
    made = {};
}

}  // namespace moex
