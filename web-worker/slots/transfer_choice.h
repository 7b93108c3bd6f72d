// Chooses by trials the copier of experts in memory to their slots: the GPU or the thread.
//
// The problem: the GPU copies while kernels run (gpu::Device::transfer), five times as fast as the
// thread, which copies through staging memory. If other processes compute on the same GPU, its
// queues run in turn, and one more queue can cost more than it saves: eight workers on an H200 were
// half as fast with it. No driver reports this.
// The method: now and then some groups are served by the other copier. A trial has pairs of
// windows: a window of groups with the usual copier, then a window with the other copier. The
// copier with the shorter times is kept.
// Limits: each process tries for itself. A gain that needs all processes to change together is not
// found, so the first guess matters. This class is pure (the caller passes times) and belongs to
// one thread.
#pragma once

#include <cstdint>
#include <optional>

namespace moex {

class TransferChoice {
  public:
    // A trial has `pairs` windows of `groups_a_window` groups with the usual copier, each followed
    // by a window with the other copier. A trial ends early if most pairs agree.
    static constexpr std::uint32_t pairs = 3, groups_a_window = 32;
    // The first groups of a window are not timed: their experts were still copied by the copier of
    // the window before.
    static constexpr std::uint32_t groups_to_settle = 4;
    // Groups between trials. Each trial that changes nothing doubles the pause. The first guess
    // `by_gpu`, made if no other process seems to use the GPU, is tested after a long pause
    // (pause_alone), because the thread copies five times as slowly, and everything else on this
    // thread waits for it.
    static constexpr std::uint32_t pause_min = 128, pause_alone = 16'384, pause_max = 65'536;
    // The other copier is chosen if its windows take less than `better` of the usual copier's time.
    // The trial ends if all of the first timed groups but one take `hopeless` times the time of a
    // usual group.
    static constexpr double better = 0.9, hopeless = 1.25;
    static constexpr std::uint32_t groups_to_despair = 4;
    // If more time passes between two answers, it counts as this time, because no call arrived
    // meanwhile.
    static constexpr double idle_ms = 100;

    // `by_gpu`: true if the GPU is the usual copier at first.
    explicit TransferChoice(bool by_gpu)
        : usual_(by_gpu),
          pause_(by_gpu ? pause_alone : pause_min) {}

    // Returns true if the GPU copies the next experts.
    bool by_gpu() const { return usual_ != tries_other(); }
    // Notes that a group was answered. Its time counts only if an expert was brought since the
    // group before (`has_brought`).
    void answered(double now_ms, bool has_brought);

  private:
    bool tries_other() const { return window_ && *window_ % 2 == 1; }
    void end_window();
    void change_copier();
    void keep_copier();
    void end_trial();

    bool usual_;                           // true: the GPU is the usual copier
    std::uint32_t pause_, left_ = pause_;  // number of groups until the next trial
    // Number of the window in a trial; even windows have the usual copier.
    std::optional<std::uint32_t> window_;
    std::uint32_t groups_ = 0;  // number of groups in the window so far
    double window_ms_ = 0;
    // Slow groups among the first with the other copier.
    std::uint32_t num_slower_ = 0;
    // Time of the last window with the usual copier.
    double usual_ms_ = 0;
    // Windows in which the other copier was faster, or not.
    std::uint32_t num_better_ = 0, num_no_better_ = 0;
    double last_ms_ = 0;  // time at which the last group was answered
};

}  // namespace moex
