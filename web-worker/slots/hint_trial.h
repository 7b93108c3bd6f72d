// Decides by trials whether a worker follows hints.
//
// The problem: a copy for a hint takes time, in a tab the time of everything else. If few experts
// are missing, or if most predictions are wrong, hints cost more than the waits that they save. A
// count of hits cannot show this, because it counts no time.
// The method: now and then the worker answers some calls in the other mode (without hints, or with
// them). The mean time from one call to the next decides, which includes the hub and the
// connection. A trial has six stages that alternate: present mode, other mode, ... The mode changes
// if the other mode saves enough time in total and in most pairs of stages.
// Limits: a pause, or another program on the machine, disturbs a stage. A trial therefore has
// several pairs. This class is pure (the caller passes times) and belongs to one thread.
#pragma once

#include <array>
#include <cstdint>

namespace moex {

class HintTrial {
  public:
    // Calls before the first trial, and after a trial that changed the mode. Each trial that
    // changed nothing doubles the pause, up to pause_max.
    static constexpr std::uint32_t pause_min = 2048, pause_max = 16384;
    // A trial has num_stages stages of stage_calls calls, with hints and without, alternating. The
    // first settling_calls of a stage are not timed: they still profit from the stage before.
    static constexpr std::uint32_t num_stages = 6, stage_calls = 256, settling_calls = 64;
    // If a call arrives later than this after the call before, the worker was idle, and
    // the call is not timed.
    static constexpr double rest_ms = 50;
    // The trial changes the mode only if the other mode saves this share of the time, in total and
    // in most pairs of stages. Smaller differences may come from other programs on the machine.
    static constexpr double gain_min = 0.03;
    // If the other mode takes this share longer in a stage, the trial ends. The stage is ended
    // early if its first `calls_to_despair` timed calls cost that much, without the two longest:
    // these may be the end of a token, or another program.
    static constexpr double loss_max = 0.25;
    static constexpr std::uint32_t calls_to_despair = 48;

    // Notes that a hint has arrived. If no hint has arrived, no trial is made.
    void hinted() { has_hints_ = true; }
    // Notes that a call has arrived at the time `now_ms`.
    void called(double now_ms);
    // Returns true if the worker shall follow hints now.
    bool follows() const { return tries_other() ? !follows_ : follows_; }

  private:
    bool is_trial() const { return stage_ < num_stages; }
    bool tries_other() const { return is_trial() && stage_ % 2 == 1; }
    bool costs_much(double mean_ms) const;
    void begin_stage();
    void end_stage();
    void end_trial();
    void keep_mode();

    bool follows_ = true, has_hints_ = false;
    std::uint32_t stage_ = num_stages;  // num_stages: no trial
    std::uint32_t calls_ = 0;           // calls of this stage, or calls since the last trial
    std::uint32_t pause_ = pause_min;
    double last_ms_ = 0, sum_ms_ = 0;
    double longest_ms_ = 0, second_ms_ = 0;  // the two longest call times in sum_ms_
    std::uint32_t num_summed_ = 0;           // number of timed calls of the stage
    std::array<double, num_stages> means_ms_{};
};

}  // namespace moex
