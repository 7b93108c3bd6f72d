// Computes the answer of a decoded group on the GPU with one upload, one submit and one readback.
// No buffer is created after warm-up. Several rounds overlap in lanes; each lane has its own
// upload, scratch and readback buffers. This class also has the published three-kernel path for
// single calls, and the self-test that decides whether this device may serve.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "protocol/life_guard.h"
#include "web-worker/expert_store.h"
#include "web-worker/gpu/round_layout.h"
#include "web-worker/group_runner.h"
#include "web-worker/round_plan.h"

namespace moex {

// The kernels that add the sums of a grouped round. Both kinds of kernels give the same bits.
enum class RoundKernels {
    by_adapter,  // `threads` on a software adapter, `lanes` on any other adapter
    // Several threads of a workgroup share a sum: neighbour threads read neighbouring memory.
    lanes,
    threads  // one thread per sum: no barrier, at which software saves each thread's state
};

struct RunnerOptions {
    WireLimits limits;
    ExpertShape shape;
    std::uint32_t num_lanes = 2;   // rounds in flight
    std::uint32_t tokens_max = 0;  // most rows in a lane's buffers; 0: limits.num_tokens_max
    std::uint32_t pairs_max = 0;   // 0: limits.num_pairs_max
    // The dtype of rows that worker and hub agreed on. A lane holds as many rows of a wider dtype
    // as fit into its bytes.
    Dtype dtype = Dtype::f32;
    RoundKernels kernels = RoundKernels::by_adapter;
};

class ExpertRunner : public GroupRunner {
  public:
    ExpertRunner(gpu::Device& device, ExpertStore& store, RunnerOptions options);
    // Returns the bytes on the GPU that all buffers of a runner with these options take.
    static std::uint64_t buffer_bytes(const RunnerOptions& options);
    // Reduces the number of lanes down to two, then the number of rows down to one, until the
    // buffers take at most `bytes_max` and no buffer exceeds a binding.
    static RunnerOptions fit(RunnerOptions options, std::uint64_t bytes_max,
                             const gpu::AdapterInfo& adapter);
    // Returns the options for the model of `welcome`, with buffers of at most `bytes_max`.
    static RunnerOptions options_for(const Welcome& welcome, std::uint64_t bytes_max,
                                     const gpu::AdapterInfo& adapter);
    ~ExpertRunner() override;
    ExpertRunner(const ExpertRunner&) = delete;

    // Compiles all kernels and makes the lanes. Call this once. The store's arenas may still grow
    // after it: the next prepare() makes their bind groups.
    void create(std::function<void(Status)> done) override;
    // Makes the bind groups of the store's present arenas, and destroys those of arenas that were
    // freed. After this call a round creates no GPU object.
    Status prepare() override;

    // Replaces the buffers for calls by those of a runner with `options`: at once, or after the
    // calls in flight have ended. Until then no lane is free. `done` may destroy this runner.
    void refit(RunnerOptions options, std::function<void(Status)> done);
    void refit(const Welcome& welcome, std::uint64_t bytes,
               std::function<void(Status)> done) override;
    const RunnerOptions& options() const { return options_; }

    bool has_free_lane() const override;
    // The GPU's time for a recent round; 0 if the GPU does not measure it.
    double gpu_us() const override { return device_.gpu_us(); }
    // Returns the most (row, expert) pairs that a group of `num_tokens` rows may have. A group of
    // more than `tokens_max` rows is split into parts of `tokens_max` rows.
    std::uint32_t pairs_max(std::uint32_t num_tokens) const override {
        return num_tokens > options_.tokens_max ? std::min(options_.tokens_max, options_.pairs_max)
                                                : options_.pairs_max;
    }
    // Starts a group. Returns unknown_expert at once if an expert is not in the store. Requires a
    // free lane.
    Status run_group(const GroupDispatchView& group, Done done,
                     std::span<std::byte> around_x = {}) override;
    Status begin_passes(const GroupDispatchView& group) override;
    Status run_pass(std::span<const std::uint32_t> experts, bool is_last, Done done) override;
    void end_passes() override;
    // Computes one DISPATCH with the three published kernels: x is [num_tokens, hidden_size] in
    // f32, and `done` gets y in f32, without gates.
    Status run_single(Unit unit, std::span<const float> x, Done done) override;
    // Computes known answers: a seeded expert with f32 rows on both paths (groups, single calls),
    // compared with expert_reference in double. `done` gets the larger normalised RMS error. Uses a
    // store and a runner of its own on `device`.
    static void self_test(gpu::Device& device, ExpertForm form,
                          std::function<void(Result<double>)> done);

  private:
    struct Sizes {  // bytes of each buffer of a lane, and of each buffer for single calls
        std::uint64_t upload = 0, x = 0, intermediate = 0, y_pairs = 0, y_wire = 0;
        std::uint64_t single_tokens = 0, single_x = 0, single_gate_up = 0, single_intermediate = 0;
    };
    static Sizes sizes_of(const RunnerOptions& options);
    struct Lane {
        gpu::BufferId upload, x, intermediate, y_pairs, y_wire, readback;
        // Each pass except the last reads one of these buffers when it ends.
        gpu::BufferId pass_ends[passes_max];
        gpu::BindGroupId unpack, pack;
        std::vector<gpu::BindGroupId> gate_up, down;  // by place
        // Bind groups by arena; only for kernels by lanes.
        std::vector<gpu::BindGroupId> down_row;
        RoundPlan plan;
        bool busy = false;
    };
    struct Single {
        gpu::BufferId x, gate_up, intermediate, y, readback, params;
        std::vector<gpu::BindGroupId> gate_up_groups, down_groups;  // by arena
        gpu::BindGroupId silu;
        bool busy = false;
    };
    // The state of a group that is computed in passes.
    struct Passes {
        std::size_t lane = 0;
        const GroupDispatchView* group = nullptr;
        std::uint32_t begun = 0, ended = 0;
        bool over = false;  // no further pass of the group follows
    };
    enum Kernel {
        unpack_rows,
        // The kernels by lanes: one per tile family of gate_up, then one per tile family of down.
        group_gate_up_row,
        group_gate_up_8,
        group_down_1,
        group_down_8,
        group_down_row,          // the second dispatch of a round with two dispatches
        group_gate_up_serial_1,  // the same kernels by threads, in the same order
        group_gate_up_serial_8,
        group_down_serial_1,
        group_down_serial_8,
        pack_rows,
        gate_up,
        silu_mul,
        down,
        num_kernels
    };
    bool by_threads() const { return options_.kernels == RoundKernels::threads; }
    Kernel gate_up_kernel(std::uint32_t family) const;
    Kernel down_kernel(std::uint32_t family) const;
    bool uses(Kernel kernel) const;
    std::string name_of(Kernel kernel) const;

    Status make_lanes();
    Status make_lane(Lane& lane);
    Status make_single();
    void destroy_lanes();
    void forget_arenas(std::size_t first);
    Status bind_arena(Lane& lane, std::size_t arena);
    void record(const GroupShape& shape, const Lane& lane, std::vector<gpu::Command>& commands);
    std::uint64_t y_bytes_of(const GroupShape& shape) const {
        return wire_rows_bytes(shape.dtype, shape.unsummed ? shape.num_pairs : shape.num_tokens,
                               options_.shape.hidden_size);
    }
    Status check_size(const GroupShape& shape, std::uint64_t upload_bytes) const;
    std::function<std::optional<ExpertSlot>(Unit)> find_awaiting();
    void submit(std::size_t index, const GroupShape& shape, gpu::BufferId pass_end = {});
    void read_answers(std::size_t index, const GroupShape& shape, Done done);
    std::size_t free_lane() const;
    void free_after_passes(const Passes& passes);
    bool idle() const;
    void refit_when_idle();
    void create_next(int kernel, std::function<void(Status)> done);
    void finish_group(std::size_t lane, const GroupShape& shape, Result<ByteView> bytes,
                      const Done& done);

    gpu::Device& device_;
    ExpertStore& store_;
    RunnerOptions options_;
    ExpertBlobLayout layout_;
    Sizes sizes_;
    gpu::PipelineId pipelines_[num_kernels];
    std::vector<gpu::BufferId> places_;        // uniform buffers (GroupPlace), one per place
    std::vector<gpu::BufferId> bound_arenas_;  // the arenas for which bind groups exist
    bool created_ = false;
    struct Refit {
        RunnerOptions options;
        std::function<void(Status)> done;
    };
    std::optional<Refit> refit_;  // new buffers, which are made when the calls in flight have ended
    std::vector<Lane> lanes_;
    std::shared_ptr<Passes> passes_;  // the group in passes, while it has a further pass to start
    Single single_;
    std::vector<std::vector<gpu::Command>> commands_;  // reused
    LifeGuard life_;
};

}  // namespace moex
