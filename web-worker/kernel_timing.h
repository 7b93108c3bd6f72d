// Measures how fast this GPU computes experts: the rows of the published micro-benchmark, whole
// rounds, and a kernel that only reads, which bounds them. A tab and a process measure in the same
// way, so that their figures can be compared.
// GPU time is a slope: the same commands run once and many times in one submission. This needs no
// clock of the GPU, which browsers round, and the cost of a submission cancels out.
#pragma once

#include <deque>
#include <memory>

#include "protocol/life_guard.h"
#include "web-worker/expert_runner.h"
#include "web-worker/gpu/recording_device.h"
#include "web-worker/timing_options.h"

namespace moex {

// One line of the result. Times are in us; 0: not measured.
struct TimingRow {
    // The measured work: empty_round, read, readback; gate_up, silu_mul, down and their total, for
    // one expert; round, for `experts` experts; and the kernels of a round by their names.
    std::string what;
    std::string shape;
    std::uint32_t rows = 0;  // rows of x for each expert
    // Time from the frame's arrival, or the submission, until its bytes are read.
    double p10_us = 0, p50_us = 0, p99_us = 0;
    double gpu_us = 0;  // GPU time of one repetition of the work
    std::uint32_t dispatches = 0;
    double mb = 0;  // weights that must be read once, in 10^6 bytes
    double gb_s() const { return gpu_us > 0 ? mb * 1e3 / gpu_us : 0; }
};

class KernelTiming {
  public:
    KernelTiming(gpu::Device& device, TimingOptions options, std::function<double()> now_us);
    ~KernelTiming();
    KernelTiming(const KernelTiming&) = delete;

    // Calls `row` for each line of the result, and `done` once at the end. Neither callback may
    // destroy this object.
    void start(std::function<void(const TimingRow&)> row, std::function<void(Status)> done);
    // Returns the speed figures that HELLO reports, from the lines measured so far.
    SpeedProfile profile() const { return profile_; }

  private:
    using Step = std::function<void()>;
    using Us = std::function<void(double us)>;
    struct Group {
        Bytes x;
        GroupDispatchView view;
    };

    void plan_rows(std::uint32_t rows);
    void next();
    void fail(const Error& error);
    void give(TimingRow row);
    void make_reader();
    void make_runner();
    Bytes blob() const;
    Group group(std::uint32_t layer, std::uint32_t rows) const;

    void submitted(std::vector<gpu::Command> commands, Us then);
    void slope(std::vector<gpu::Command> commands, Us then);
    void take_turn();
    void times_of_rounds(std::uint32_t rows, std::function<void()> then);
    void hold_single(std::uint32_t rows);
    void hold_rounds(std::uint32_t rows);
    void time_held(std::uint32_t rows, bool single);
    double mb_of(const std::string& kernel, std::uint32_t experts) const;

    gpu::RecordingDevice device_;
    TimingOptions options_;
    std::function<double()> now_us_;
    std::function<void(const TimingRow&)> row_;
    std::function<void(Status)> done_;
    SpeedProfile profile_;
    double started_us_ = 0;
    std::deque<Step> steps_;

    gpu::BufferId words_, sums_, word_, readback_;
    gpu::Command read_;
    std::unique_ptr<ExpertStore> store_;
    std::unique_ptr<ExpertRunner> runner_;
    std::vector<Group> groups_;  // one group per layer, with the present number of rows
    std::vector<double> times_;
    std::uint32_t unfinished_ = 0;  // recorded rounds that have not ended yet

    struct Slope {  // the slope (time per repetition) that is being measured
        std::vector<gpu::Command> once, many;
        std::uint32_t repeats = 0, turns_left = 0;
        double once_us = 0, many_us = 0;
        Us then;
    } slope_;
    LifeGuard life_;
};

}  // namespace moex
