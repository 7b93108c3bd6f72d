// Who brings experts that lie in memory to their slots: the GPU itself, beside what is computed
// (gpu::Device::transfer), or the worker's thread through staging memory. The GPU is five times as
// fast where it is alone. Where other processes compute on it its queues take turns, and a queue
// more can cost more than it brings: eight workers on one H200 were half as fast by it. No driver
// tells, so the groups that run do: now and then some are served the other way, in turns with the
// usual one, and whichever answered them sooner is kept. Each process tries for itself: where all
// would gain by changing together nobody finds out, so that the first guess counts.
// Pure: times are given. One thread.
#pragma once

#include <cstdint>
#include <optional>

namespace moex {

class TransferChoice {
  public:
    // A trial: so many windows of groups one way, each with one of the other behind it; fewer where
    // most agree already.
    static constexpr std::uint32_t pairs = 3, groups_a_window = 32;
    // The first of a window are not timed: what was on its way before them came the other way.
    static constexpr std::uint32_t groups_to_settle = 4;
    // Groups between trials: twice as many each time that nothing changes. A first guess for the
    // GPU, where it seems to be nobody else's, is not doubted soon: a thread takes five times as
    // long, and whoever it serves beside this waits for it.
    static constexpr std::uint32_t pause_min = 128, pause_alone = 16'384, pause_max = 65'536;
    // The other way is taken where it takes less than this share of the usual one's time. Where all
    // but one of the first that are timed take `hopeless` of a usual group's the trial is over.
    static constexpr double better = 0.9, hopeless = 1.25;
    static constexpr std::uint32_t groups_to_despair = 4;
    // The time between two answers counts as this at most: nobody asked.
    static constexpr double idle_ms = 100;

    // `by_gpu`: at first, a guess.
    explicit TransferChoice(bool by_gpu)
        : usual_(by_gpu),
          pause_(by_gpu ? pause_alone : pause_min) {}

    // What is brought from now on.
    bool by_gpu() const { return usual_ != tries_other(); }
    // A group was answered; what it shows counts where anything was brought since the one before.
    void answered(double now_ms, bool has_brought);

  private:
    bool tries_other() const { return window_ && *window_ % 2 == 1; }
    void end_window();
    void change_way();
    void keep_way();
    void end_trial();

    bool usual_;                           // by the GPU
    std::uint32_t pause_, left_ = pause_;  // groups until the next trial
    std::optional<std::uint32_t> window_;  // of the trial that runs: even ones are the usual way
    std::uint32_t groups_ = 0;             // of it, so far
    double window_ms_ = 0;
    std::uint32_t num_slower_ = 0;                      // of the other way's first groups
    double usual_ms_ = 0;                               // of the window before
    std::uint32_t num_better_ = 0, num_no_better_ = 0;  // windows of the other way
    double last_ms_ = 0;                                // when the last group was answered
};

}  // namespace moex
