// Computes groups on the processor. A group is decoded, computed and encoded within run_group(),
// and the answer is delivered after this call by a timer. One group is computed at a time.
// Reference in plain loops: protocol/expert_reference.h. The bits of the answers are those of the
// hub's local backend in the same arithmetic.
#pragma once

#include "hub/engine/kernels/expert_round.h"
#include "protocol/life_guard.h"
#include "web-worker/cpu/cpu_store.h"
#include "web-worker/group_runner.h"
#include "web-worker/session/platform.h"

namespace moex {

class CpuRunner : public GroupRunner {
  public:
    CpuRunner(Platform& platform, ThreadPool& threads, const CpuStore& store,
              const Welcome& welcome, std::uint64_t bytes_max);

    void create(std::function<void(Status)> done) override;
    Status prepare() override { return {}; }
    void refit(const Welcome& welcome, std::uint64_t bytes,
               std::function<void(Status)> done) override;

    bool has_free_lane() const override { return delivering_ == 0 && passes_of_ == nullptr; }
    std::uint32_t pairs_max(std::uint32_t num_tokens) const override {
        return num_tokens > tokens_max_ ? std::min(tokens_max_, pairs_max_) : pairs_max_;
    }
    double gpu_us() const override { return 0; }

    Status run_group(const GroupDispatchView& group, Done done,
                     std::span<std::byte> around_x = {}) override;
    Status begin_passes(const GroupDispatchView& group) override;
    Status run_pass(std::span<const std::uint32_t> experts, bool is_last, Done done) override;
    void end_passes() override { passes_of_ = nullptr; }
    Status run_single(Unit unit, std::span<const float> x, Done done) override;

  private:
    // Fills x_ and row_of_slot_ from the group. Errors: num_tokens_range, non_finite.
    Status take(const GroupDispatchView& group);
    // Computes y_ [slots, hidden_size] from slot `first_slot` on: y_[slot] =
    // expert(x_[row_of_slot[slot]]), for the slots of each of `experts` in order. Error:
    // unknown_expert.
    Status compute(std::uint16_t layer, std::span<const GroupExpert> experts,
                   std::uint32_t num_tokens, std::span<const std::uint32_t> row_of_slot,
                   std::uint32_t first_slot = 0);
    // Makes the answer from the rows of y_ of all slots, and delivers it.
    void answer(const GroupDispatchView& group, Done done);
    void apply_gates(const GroupDispatchView& group);
    void sum_rows(const GroupDispatchView& group);
    void deliver(Result<ByteView> y, Done done);

    Platform& platform_;
    ThreadPool& threads_;
    const CpuStore& store_;
    std::uint32_t tokens_max_ = 0, pairs_max_ = 0;
    std::uint32_t delivering_ = 0;
    const GroupDispatchView* passes_of_ = nullptr;
    // Scratch buffers, reused by every group.
    std::vector<float> x_, y_, sums_;
    std::vector<std::uint32_t> row_of_slot_, slots_of_row_, first_of_row_;
    Bytes frame_;  // the encoded answer, with room for the GROUP_RESULT frame around it
    LifeGuard life_;
};

}  // namespace moex
