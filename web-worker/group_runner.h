// From a decoded group to its answer: what the call queue asks, whatever computes.
// On a GPU: expert_runner.h. On the processor: cpu/cpu_runner.h. A callback never runs inside the
// call that takes it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "protocol/messages.h"

namespace moex {

// Of memory in which a GROUP_RESULT is made around its y, as frame_group_result() takes it.
constexpr std::uint64_t group_frame_bytes(std::uint64_t y_bytes) {
    return group_result_y_offset + y_bytes + group_result_times_bytes;
}

class GroupRunner {
  public:
    // `y_bytes` is in wire form, valid during the call. device_lost, non_finite.
    // That of run_group() lies in memory of group_frame_bytes(), to be overwritten around it.
    using Done = std::function<void(Result<ByteView> y_bytes)>;
    virtual ~GroupRunner() = default;

    // Once, before anything else.
    virtual void create(std::function<void(Status)> done) = 0;
    // After the store has grown or shrunk: from here on a round creates nothing.
    virtual Status prepare() = 0;
    // Other buffers for calls, of at most `bytes`: at once, or when the calls under way have ended;
    // until then no lane is free. `done` is not called where nothing changes; it may end this
    // runner.
    virtual void refit(const Welcome& welcome, std::uint64_t bytes,
                       std::function<void(Status)> done) = 0;

    virtual bool has_free_lane() const = 0;
    // The pairs that a group of `num_tokens` rows may have here. A group of more rows than there is
    // room for is taken in parts.
    virtual std::uint32_t pairs_max(std::uint32_t num_tokens) const = 0;
    // The GPU's own time for one of the last rounds; 0 where it does not tell.
    virtual double gpu_us() const = 0;

    // Starts a group whose experts are all held (else unknown_expert at once); num_tokens_range for
    // one that is too large. Requires a free lane.
    // `around_x`: memory that ends with the group's x and may be overwritten; none: it may not.
    virtual Status run_group(const GroupDispatchView& group, Done done,
                             std::span<std::byte> around_x) = 0;
    // Of what run_group() gave its `done`: the y and the memory around it.
    static std::span<std::byte> frame_around(ByteView y_bytes) {
        // the runner gave it to be overwritten; its type only says that few do
        auto* y = const_cast<std::byte*>(y_bytes.data());
        return {y - group_result_y_offset,
                static_cast<std::size_t>(group_frame_bytes(y_bytes.size()))};
    }
    // A group in passes (group_passes.h): takes a free lane until its last pass has ended, or
    // end_passes() was called and those under way have. `group`, and what it views, stay as long.
    // One group at a time; num_tokens_range for one that is too large.
    virtual Status begin_passes(const GroupDispatchView& group) = 0;
    // The group's experts of these places in its table, ascending, all held (else unknown_expert),
    // which no pass before had. `done` of the last one gets the group's y, as run_group() gives it;
    // of those before, nothing. They end in their order.
    virtual Status run_pass(std::span<const std::uint32_t> experts, bool is_last, Done done) = 0;
    virtual void end_passes() = 0;
    static constexpr std::uint32_t passes_max = 2;  // under way

    // One DISPATCH: x [num_tokens, hidden_size] f32 in, `done` gets y f32 without gates.
    // overloaded while another runs.
    virtual Status run_single(Unit unit, std::span<const float> x, Done done) = 0;
};

}  // namespace moex
