// Whether a worker's calls come faster with hints or without. What is brought for a hint takes the
// time of who brings it, in a tab that of everything else, too: where little is missing, or most of
// what was named is not asked, hints cost more than the waits that they spare, and no count of hits
// tells that. So time does: now and then some calls are answered in the other way, and the mean
// from one call to the next, hub and line included, decides. Pure: times are given. One thread.
#pragma once

#include <array>
#include <cstdint>

namespace moex {

class HintTrial {
  public:
    // Calls before the first trial, and after one that changed something; twice as many after each
    // that changed nothing, up to pause_max.
    static constexpr std::uint32_t pause_min = 2048, pause_max = 16384;
    // A trial is so many stages of so many calls, with hints and without in turns; the first of
    // each still meet what the stage before has left.
    static constexpr std::uint32_t num_stages = 6, stage_calls = 256, settling_calls = 64;
    // A call that came later than this came to a worker at rest.
    static constexpr double rest_ms = 50;
    // The other way must save so much, in all and in most turns: others use the machine, too.
    static constexpr double gain_min = 0.03;
    // A turn in which it costs so much ends the trial, at once where its first `calls_to_despair`
    // that are timed do, all but the two that took longest: a token's end, or somebody else.
    static constexpr double loss_max = 0.25;
    static constexpr std::uint32_t calls_to_despair = 48;

    // Hints came; where none do nothing is tried.
    void hinted() { has_hints_ = true; }
    // A call came at `now_ms`.
    void called(double now_ms);
    // Whether hints are to be followed now.
    bool follows() const { return tries_other() ? !follows_ : follows_; }

  private:
    bool is_trial() const { return stage_ < num_stages; }
    bool tries_other() const { return is_trial() && stage_ % 2 == 1; }
    bool costs_much(double mean_ms) const;
    void begin_stage();
    void end_stage();
    void end_trial();
    void keep_way();

    bool follows_ = true, has_hints_ = false;
    std::uint32_t stage_ = num_stages;  // none: no trial
    std::uint32_t calls_ = 0;           // of this stage, or since the last trial
    std::uint32_t pause_ = pause_min;
    double last_ms_ = 0, sum_ms_ = 0;
    double longest_ms_ = 0, second_ms_ = 0;  // of these
    std::uint32_t num_summed_ = 0;           // of the stage's calls, behind those that settle
    std::array<double, num_stages> means_ms_{};
};

}  // namespace moex
