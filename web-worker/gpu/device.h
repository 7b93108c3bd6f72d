// The interface of a GPU for the expert runner: buffers, three kinds of kernel, one submit and one
// readback per round. Two backends implement it: web-worker/gpu/webgpu (a tab, through
// web-worker/browser's JS) and web-worker/gpu/vulkan (the native worker). No other code names
// either API. Single-threaded: every call and every callback runs on the worker's thread. A
// callback never runs inside the call that was given it.
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
    std::uint64_t max_binding_bytes = 0;  // the most bytes of a storage binding
    // Memory of the GPU that is available to this process; 0: unknown.
    std::uint64_t memory_bytes = 0;
    std::uint32_t max_workgroup_invocations = 256;
    std::uint32_t max_workgroups_per_dimension = 65535;
};

// Handles of GPU objects. A handle with the value 0 refers to no object.
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
    // A buffer that write_buffer() writes, that kernels read and write, and that is source and
    // target of copies.
    storage,
    uniform,
    readback,  // a buffer that is the target of a copy and is then read by read_buffer()
};

// The kind of a kernel's binding, as the WGSL declares it.
enum class BindingKind : std::uint8_t { read_storage, storage, uniform };

struct Binding {
    BufferId buffer;
    std::uint64_t offset_bytes = 0;  // multiple of 256
    std::uint64_t size_bytes = 0;    // 0: up to the end of the buffer
};

// The value of a WGSL override of a kernel, given when its pipeline is made.
struct KernelConstant {
    std::string_view name;
    std::uint32_t value = 0;
};

// One recorded command of a round.
struct Command {
    enum class Kind : std::uint32_t { dispatch, copy } kind = Kind::dispatch;
    // True: this command is in the same stage as the command before. Commands of one stage do not
    // see each other's writes.
    bool same_stage = false;
    // dispatch
    PipelineId pipeline;
    BindGroupId bind_group;
    std::array<std::uint32_t, 3> workgroups{1, 1, 1};
    // copy: from a storage buffer to a readback buffer or another storage buffer
    BufferId source, target;
    std::uint64_t source_offset_bytes = 0, target_offset_bytes = 0, size_bytes = 0;
};

// Counters that only grow. A test reads them after warm-up to show that a round creates nothing,
// and that it submits and maps a buffer once.
struct DeviceCounters {
    std::uint64_t buffers_created = 0, bind_groups_created = 0, pipelines_created = 0;
    std::uint64_t submits = 0, readbacks = 0, buffer_writes = 0, bytes_written = 0, bytes_read = 0;
    std::uint64_t transfers = 0, bytes_transferred = 0;
    std::uint64_t buffer_bytes = 0;  // gauge: allocated now
};

// `awaited`: a group waits for this transfer now. `prefetch`: a group may need it later.
enum class TransferKind : std::uint8_t { awaited, prefetch };

// The reason why a device is lost. A smaller budget helps only if the reason is out_of_memory.
enum class LossKind : std::uint32_t { out_of_memory, other };
struct Loss {
    LossKind kind = LossKind::other;
    std::string reason;  // for people
};
// Converts an error of create_buffer() or a similar call to a Loss.
inline Loss loss_of(const Error& error) {
    if (error.code == ErrorCode::no_space)
        return {LossKind::out_of_memory, text("out of memory: ", error.message)};
    return {LossKind::other, error.message};
}

class Device {
  public:
    virtual ~Device() = default;
    virtual const AdapterInfo& adapter() const = 0;

    // Makes a buffer filled with zeros. Returns an error if the device is out of memory or lost.
    virtual Result<BufferId> create_buffer(std::uint64_t size_bytes, BufferUsage usage,
                                           std::string_view label) = 0;
    virtual void destroy_buffer(BufferId buffer) = 0;
    // Writes bytes to a buffer. Offset and size are multiples of 4. The write takes effect before
    // commands that are submitted later.
    virtual void write_buffer(BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) = 0;

    // Registers memory of this process, which transfer() may read. The memory begins and ends on
    // page boundaries, and must stay valid until unshare_memory(), which waits for transfers that
    // read it. Returns unsupported for a tab's device, or a driver that cannot do this.
    virtual Status share_memory([[maybe_unused]] ByteView memory) {
        return Error{ErrorCode::unsupported, "this device reads no memory of its process"};
    }
    virtual void unshare_memory([[maybe_unused]] ByteView memory) {}
    // Copies `bytes` to a storage buffer while kernels run: neither this thread nor a kernel waits.
    // Transfers have a queue of their own, in which awaited transfers go before prefetches. No
    // other command may use that part of the buffer until the transfer is over. The bytes must stay
    // valid until `done`, which a lost device does not call. Offset and size are multiples of 4.
    // Returns the transfer's number; 0 if `bytes` are not in shared memory, and nothing was done.
    virtual std::uint64_t transfer([[maybe_unused]] BufferId buffer,
                                   [[maybe_unused]] std::uint64_t offset_bytes,
                                   [[maybe_unused]] ByteView bytes,
                                   [[maybe_unused]] TransferKind kind,
                                   [[maybe_unused]] std::function<void()> done) {
        return 0;
    }
    // Guesses whether other processes compute on this GPU, from the memory that they hold.
    virtual bool is_shared() const { return false; }
    // Makes the next submission and all later ones see the result of this transfer: the GPU waits
    // for the transfer, which now goes before prefetches.
    virtual void await_transfer([[maybe_unused]] std::uint64_t number) {}
    // Returns true if this transfer is over. If `wait`, waits until it is over, or the device is
    // lost.
    virtual bool transferred([[maybe_unused]] std::uint64_t number,
                             [[maybe_unused]] bool wait = false) {
        return true;
    }

    // Compiles a kernel. `kernel` names an entry of wgsl/kernels.h (generated): WGSL text with
    // constants for WebGPU, SPIR-V for Vulkan. A compile error contains the compiler's line and
    // column. A kernel that was compiled before with the same constants is returned again.
    // `constants` has all of the kernel's overrides, and may have more.
    virtual void create_pipeline(std::string_view kernel, std::span<const KernelConstant> constants,
                                 std::function<void(Result<PipelineId>)> done) = 0;
    virtual Result<BindGroupId> create_bind_group(PipelineId pipeline,
                                                  std::span<const Binding> bindings) = 0;
    virtual void destroy_bind_group(BindGroupId bind_group) = 0;

    // Submits the commands as one submission. They run in order; each command sees the writes of
    // earlier stages.
    virtual void submit(std::span<const Command> commands) = 0;
    // Reads a readback buffer after the submissions so far have copied to it. `done` gets the first
    // `size_bytes`; the view is valid during the call only, and the callee may overwrite its
    // memory. Submitted commands that do not touch the buffer may still run: a browser does not
    // wait for them. The backend tries to notice the completion early (a tab makes keep-alive
    // writes, which make the browser's GPU process notice finished work).
    virtual void read_buffer(BufferId buffer, std::uint64_t size_bytes,
                             std::function<void(Result<ByteView>)> done) = 0;

    // If true, the owner's thread polls for readbacks with answer_read() and is not called back.
    // This saves waking two threads, which costs more time than a small submission. A backend that
    // cannot do this (a tab's) continues to call back.
    virtual void set_owner_answers(bool) {}
    // After set_owner_answers(true): calls `done` of the oldest read_buffer() if its bytes have
    // been read. If `wait`, waits for the bytes. Returns false if no `done` was called.
    virtual bool answer_read([[maybe_unused]] bool wait) { return false; }

    // Notes a hint: work will probably be submitted within this time. A backend may keep the GPU
    // awake for it, and keep polling for completions (a tab's does). Correctness does not depend on
    // it.
    virtual void expect_work([[maybe_unused]] double within_ms) {}

    // `handler` is called at most once, when the device is lost. Every call to a lost device
    // returns an error or does nothing.
    virtual void on_lost(std::function<void(Loss)> handler) = 0;
    virtual DeviceCounters counters() const = 0;
    // Returns the GPU's time for a recent submission with a delivered readback; 0 if the GPU cannot
    // measure it. Only some submissions are timed. Copies into buffers are not counted. A tab,
    // where the clock is coarse, returns the mean of 64.
    virtual double gpu_us() const = 0;
};

}  // namespace moex::gpu
