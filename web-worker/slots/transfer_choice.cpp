#include "web-worker/slots/transfer_choice.h"

#include <algorithm>

namespace moex {

void TransferChoice::answered(double now_ms, bool has_brought) {
    const double took_ms = std::min(now_ms - last_ms_, idle_ms);
    last_ms_ = now_ms;
    if (!has_brought) return;

    if (!window_) {
        if (--left_ == 0) window_ = 0;
        return;
    }
    if (++groups_ <= groups_to_settle) return;
    window_ms_ += took_ms;
    const std::uint32_t num_timed = groups_ - groups_to_settle;
    if (tries_other() && num_timed <= groups_to_despair) {
        const double usual_ms = usual_ms_ / (groups_a_window - groups_to_settle);
        num_slower_ += took_ms > hopeless * usual_ms ? 1 : 0;
        if (num_timed == groups_to_despair && num_slower_ + 1 >= groups_to_despair)
            return keep_copier();
    }
    if (groups_ == groups_a_window) end_window();
}

void TransferChoice::end_window() {
    const double took_ms = window_ms_;
    window_ms_ = 0;
    groups_ = num_slower_ = 0;
    if (tries_other())
        ++(took_ms < better * usual_ms_ ? num_better_ : num_no_better_);
    else
        usual_ms_ = took_ms;
    ++*window_;
    if (num_no_better_ > pairs / 2) return keep_copier();
    if (num_better_ > pairs / 2) change_copier();
}

void TransferChoice::change_copier() {
    end_trial();
    usual_ = !usual_;
    left_ = pause_ = pause_min;
}

void TransferChoice::keep_copier() {
    end_trial();
    left_ = pause_ = std::min(2 * pause_, pause_max);
}

void TransferChoice::end_trial() {
    window_.reset();
    groups_ = num_slower_ = num_better_ = num_no_better_ = 0;
    window_ms_ = 0;
}

}  // namespace moex
