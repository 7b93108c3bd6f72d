// The interface that computes the answer of a decoded group. The call queue uses it, whatever
// hardware computes. Implementations: expert_runner.h on a GPU; cpu/cpu_runner.h on the processor.
// A callback never runs inside the call that was given it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "protocol/messages.h"

namespace moex {

// Returns the bytes of memory in which frame_group_result() makes a GROUP_RESULT around a y of
// `y_bytes`.
constexpr std::uint64_t group_frame_bytes(std::uint64_t y_bytes) {
    return group_result_y_offset + y_bytes + group_result_times_bytes;
}

class GroupRunner {
  public:
    // Gets y in wire form, valid during the call, or an error: device_lost, non_finite. The y that
    // run_group() delivers is inside memory of group_frame_bytes(); the callback may overwrite the
    // bytes around y.
    using Done = std::function<void(Result<ByteView> y_bytes)>;
    virtual ~GroupRunner() = default;

    // Creates buffers and kernels. Called once, before any other method.
    virtual void create(std::function<void(Status)> done) = 0;
    // Adapts the runner to a store that has grown or shrunk. After this call a round creates no
    // buffer.
    virtual Status prepare() = 0;
    // Replaces the buffers for calls by buffers of at most `bytes`: at once, or after the calls in
    // flight have ended. Until then no lane is free. `done` is not called if nothing changes; it
    // may destroy this runner.
    virtual void refit(const Welcome& welcome, std::uint64_t bytes,
                       std::function<void(Status)> done) = 0;

    virtual bool has_free_lane() const = 0;
    // Returns the most (row, expert) pairs that a group of `num_tokens` rows may have. A group of
    // more rows than the buffers hold is split into parts.
    virtual std::uint32_t pairs_max(std::uint32_t num_tokens) const = 0;
    // Returns the GPU's own time for a recent round; 0 if the GPU does not measure it.
    virtual double gpu_us() const = 0;

    // Starts a group. Fails at once with unknown_expert if an expert is not in the store, and with
    // num_tokens_range if the group is too large. Requires a free lane.
    // `around_x`: memory that ends with the group's x and may be overwritten; empty: none.
    virtual Status run_group(const GroupDispatchView& group, Done done,
                             std::span<std::byte> around_x) = 0;
    // Returns the memory around the y that run_group() gave to its `done`.
    static std::span<std::byte> frame_around(ByteView y_bytes) {
        // The runner allows its caller to overwrite y. The type of y is const because few callers
        // do that.
        auto* y = const_cast<std::byte*>(y_bytes.data());
        return {y - group_result_y_offset,
                static_cast<std::size_t>(group_frame_bytes(y_bytes.size()))};
    }
    // Starts a group in passes (group_passes.h). The group takes a free lane until its last pass
    // has ended, or until end_passes() was called and the passes in flight have ended. `group` and
    // the memory that it views must stay valid until then. Only one group at a time may be in
    // passes. Returns num_tokens_range if the group is too large.
    virtual Status begin_passes(const GroupDispatchView& group) = 0;
    // Runs one pass. `experts`: indices into the group's table of experts, ascending, which no
    // earlier pass had. Returns unknown_expert if one of them is not in the store. `done` of the
    // last pass gets the group's y as in run_group(); `done` of the earlier passes gets no bytes.
    // Passes end in order.
    virtual Status run_pass(std::span<const std::uint32_t> experts, bool is_last, Done done) = 0;
    virtual void end_passes() = 0;
    static constexpr std::uint32_t passes_max = 2;  // in flight

    // Computes one DISPATCH: x is [num_tokens, hidden_size] in f32, and `done` gets y in f32,
    // without gates. Returns overloaded while another single call runs.
    virtual Status run_single(Unit unit, std::span<const float> x, Done done) = 0;
};

}  // namespace moex
