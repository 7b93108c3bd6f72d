#include "web-worker/slots/hint_trial.h"

#include <algorithm>
#include <utility>

namespace moex {

void HintTrial::called(double now_ms) {
    const double since_ms = now_ms - std::exchange(last_ms_, now_ms);
    ++calls_;
    if (!is_trial()) {
        if (calls_ < pause_ || !has_hints_) return;
        stage_ = 0;
        return begin_stage();
    }
    if (calls_ > settling_calls && since_ms < rest_ms) {
        sum_ms_ += since_ms;
        ++num_summed_;
        if (since_ms > longest_ms_)
            second_ms_ = std::exchange(longest_ms_, since_ms);
        else
            second_ms_ = std::max(second_ms_, since_ms);
    }
    if (calls_ == stage_calls) return end_stage();
    if (!tries_other() || num_summed_ != calls_to_despair) return;
    if (costs_much((sum_ms_ - longest_ms_ - second_ms_) / (num_summed_ - 2))) keep_mode();
}

// Returns true if a call in the other mode takes much longer on average than a call in the stage
// before.
bool HintTrial::costs_much(double mean_ms) const {
    return mean_ms > (1 + loss_max) * means_ms_[stage_ - 1];
}

void HintTrial::end_stage() {
    const bool was_idle = num_summed_ < (stage_calls - settling_calls) / 2;
    means_ms_[stage_] = sum_ms_ / std::max(num_summed_, 1u);
    const bool was_in_vain = tries_other() && costs_much(means_ms_[stage_]);
    begin_stage();
    if (was_idle)
        stage_ = num_stages;  // the trial has no result; the next trial follows after the pause
    else if (was_in_vain)
        keep_mode();
    else if (++stage_ == num_stages)
        end_trial();
}

void HintTrial::begin_stage() {
    calls_ = num_summed_ = 0;
    sum_ms_ = longest_ms_ = second_ms_ = 0;
}

void HintTrial::keep_mode() {
    begin_stage();
    stage_ = num_stages;
    has_hints_ = false;  // only a hint that arrives from now on starts another trial
    pause_ = std::min(2 * pause_, pause_max);
}

void HintTrial::end_trial() {
    const auto saves = [](double used, double tried) { return tried < (1 - gain_min) * used; };
    double used = 0, tried = 0;
    std::uint32_t num_saving = 0;
    for (std::size_t stage = 0; stage < num_stages; stage += 2) {
        used += means_ms_[stage];
        tried += means_ms_[stage + 1];
        num_saving += saves(means_ms_[stage], means_ms_[stage + 1]);
    }
    if (!saves(used, tried) || 2 * num_saving <= num_stages / 2) return keep_mode();
    follows_ = !follows_;
    has_hints_ = false;
    pause_ = pause_min;
}

}  // namespace moex
