// A GPU as the expert runner sees it: buffers, three kinds of
// kernel, one submit and one readback per round. Two backends:
// web-worker/gpu/webgpu (a tab, through web-worker/browser's JS) and
// web-worker/gpu/vulkan (the native worker). Nothing else names either API.
// Single-threaded: every call and every callback is on the worker's
// one thread. Callbacks never run inside the call that takes them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex::gpu {

struct AdapterInfo {
    std::string backend;  // "webgpu" or "vulkan"
    std::string vendor, architecture, description;
    bool software = false;  // SwiftShader, lavapipe
    bool has_f16 = false, has_subgroups = false;
    std::uint64_t max_buffer_bytes = 0;
    std::uint64_t max_binding_bytes = 0;  // of one storage binding
    std::uint64_t memory_bytes = 0;       // what this process may take; 0: the backend cannot tell
    std::uint32_t max_workgroup_invocations = 256;
    std::uint32_t max_workgroups_per_dimension = 65535;
};

// Handles; 0 is none.
struct BufferId {
    std::uint32_t value = 0;
    bool operator==(const BufferId&) const = default;
};
struct PipelineId {
    std::uint32_t value = 0;
    bool operator==(const PipelineId&) const = default;
};
struct BindGroupId {
    std::uint32_t value = 0;
    bool operator==(const BindGroupId&) const = default;
};

enum class BufferUsage : std::uint32_t {
    // written by write_buffer(), read and written by kernels, source and target of copies
    storage,
    uniform,
    readback,  // target of one copy, then read_buffer()
};

// How the kernel's bindings 0..n-1 are declared in the WGSL.
enum class BindingKind : std::uint8_t { read_storage, storage, uniform };

struct Binding {
    BufferId buffer;
    std::uint64_t offset_bytes = 0;  // multiple of 256
    std::uint64_t size_bytes = 0;    // 0: to the end
};

// What a kernel is told when its pipeline is made: one of its WGSL overrides.
struct KernelConstant {
    std::string_view name;
    std::uint32_t value = 0;
};

// One recorded command of a round.
struct Command {
    enum class Kind : std::uint32_t { dispatch, copy } kind = Kind::dispatch;
    // Of one stage with the command before it: neither sees what the other writes.
    bool same_stage = false;
    // dispatch
    PipelineId pipeline;
    BindGroupId bind_group;
    std::array<std::uint32_t, 3> workgroups{1, 1, 1};
    // copy: storage to readback, or to another storage buffer
    BufferId source, target;
    std::uint64_t source_offset_bytes = 0, target_offset_bytes = 0, size_bytes = 0;
};

// All monotonic. A test reads them after warm-up to show
// that a round creates nothing and submits and maps once.
struct DeviceCounters {
    std::uint64_t buffers_created = 0, bind_groups_created = 0, pipelines_created = 0;
    std::uint64_t submits = 0, readbacks = 0, buffer_writes = 0, bytes_written = 0, bytes_read = 0;
    std::uint64_t transfers = 0, bytes_transferred = 0;
    std::uint64_t buffer_bytes = 0;  // gauge: allocated now
};

// Whether somebody waits for what a transfer brings, or may do so later.
enum class TransferKind : std::uint8_t { awaited, prefetch };

// Why a device is of no use any more. Only a lack of memory is mended by asking for less.
enum class LossKind : std::uint32_t { out_of_memory, other };
struct Loss {
    LossKind kind = LossKind::other;
    std::string reason;  // for people
};
// As a Loss: what create_buffer() and the like answered.
inline Loss loss_of(const Error& error) {
    if (error.code == ErrorCode::no_space)
        return {LossKind::out_of_memory, text("out of memory: ", error.message)};
    return {LossKind::other, error.message};
}

class Device {
  public:
    virtual ~Device() = default;
    virtual const AdapterInfo& adapter() const = 0;

    // Contents start as zero. An error when the device is out of memory or lost.
    virtual Result<BufferId> create_buffer(std::uint64_t size_bytes, BufferUsage usage,
                                           std::string_view label) = 0;
    virtual void destroy_buffer(BufferId buffer) = 0;
    // Offset and size are multiples of 4. Takes effect before commands submitted later.
    virtual void write_buffer(BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) = 0;

    // Memory of this process that transfer() reads: it begins and ends on pages, and stays until
    // unshare_memory(), which waits for transfers that read it. unsupported: a tab's device, or a
    // driver that cannot.
    virtual Status share_memory([[maybe_unused]] ByteView memory) {
        return Error{ErrorCode::unsupported, "this device reads no memory of its process"};
    }
    virtual void unshare_memory([[maybe_unused]] ByteView memory) {}
    // Copies `bytes` to a storage buffer beside the kernels: neither this thread nor a kernel
    // waits. Awaited ones go before foreseen ones where they have a queue of their own. Nothing
    // else may use that part of the buffer until it is over, and the bytes stay until `done`, which
    // a lost device does not call. Offset and size are multiples of 4.
    // The value: the transfer's number; 0: `bytes` lie in no shared memory; nothing was done.
    virtual std::uint64_t transfer([[maybe_unused]] BufferId buffer,
                                   [[maybe_unused]] std::uint64_t offset_bytes,
                                   [[maybe_unused]] ByteView bytes,
                                   [[maybe_unused]] TransferKind kind,
                                   [[maybe_unused]] std::function<void()> done) {
        return 0;
    }
    // Whether other processes seem to compute on this GPU: a guess by the memory that they hold.
    virtual bool is_shared() const { return false; }
    // The next submission, and those behind it, see what this transfer wrote: the GPU waits for it,
    // and it goes before those that are only foreseen.
    virtual void await_transfer([[maybe_unused]] std::uint64_t number) {}
    // Whether this transfer is over; with `wait` it is, unless the device is lost.
    virtual bool transferred([[maybe_unused]] std::uint64_t number,
                             [[maybe_unused]] bool wait = false) {
        return true;
    }

    // `kernel` names an entry of wgsl/kernels.h (generated): its
    // WGSL text with constants for WebGPU, its SPIR-V for Vulkan.
    // A compile error carries the compiler's line and column. A
    // kernel that was made before is given again, not compiled anew.
    // `constants` has all of the kernel's overrides, and may have more.
    virtual void create_pipeline(std::string_view kernel, std::span<const KernelConstant> constants,
                                 std::function<void(Result<PipelineId>)> done) = 0;
    virtual Result<BindGroupId> create_bind_group(PipelineId pipeline,
                                                  std::span<const Binding> bindings) = 0;
    virtual void destroy_bind_group(BindGroupId bind_group) = 0;

    // One submission. Commands run in order, each sees the writes of those before its stage.
    virtual void submit(std::span<const Command> commands) = 0;
    // After what was submitted so far has copied into this readback buffer: `done` gets its first
    // `size_bytes`; the view is valid during the call only, and its memory the callee's to
    // overwrite. What was submitted and has nothing to do with the buffer may be still under way: a
    // browser does not wait for it.
    // The backend does what it can to learn of completion
    // early (a tab pokes the GPU process meanwhile).
    virtual void read_buffer(BufferId buffer, std::uint64_t size_bytes,
                             std::function<void(Result<ByteView>)> done) = 0;

    // Whether the owner's thread learns of readbacks by itself, with answer_read(), instead of
    // being called back. It saves the wakes of two threads, which cost more than a small submission
    // takes. A backend that cannot (a tab's) goes on calling back.
    virtual void set_owner_answers(bool) {}
    // While set_owner_answers(): calls `done` of the oldest read_buffer() whose bytes are there.
    // With `wait` it waits for them. False: none was answered.
    virtual bool answer_read([[maybe_unused]] bool wait) { return false; }

    // Something will be submitted within this time, most likely. A backend that can (a tab's) keeps
    // the GPU awake for it, and the way to learn of completion; nothing depends on it.
    virtual void expect_work([[maybe_unused]] double within_ms) {}

    // Called at most once, when the device is lost; afterwards every call fails softly.
    virtual void on_lost(std::function<void(Loss)> handler) = 0;
    virtual DeviceCounters counters() const = 0;
    // How long the GPU took for one of the last submissions whose readback was delivered (some are
    // timed, not all); 0 where it cannot tell. Copies into buffers are not counted. In a tab, where
    // the clock is coarse, the mean of 64 of them.
    virtual double gpu_us() const = 0;
};

}  // namespace moex::gpu
