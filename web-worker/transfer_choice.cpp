#include "web-worker/transfer_choice.h"

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
            return keep_way();
    }
    if (groups_ == groups_a_window) end_window();
}

void TransferChoice::end_window() {
    const double took_ms = window_ms_;
    window_ms_ = 0;
    groups_ = num_slower_ = 0;
    if (tries_other())
        shares_[*window_ / 2] = usual_ms_ > 0 ? took_ms / usual_ms_ : 1;
    else
        usual_ms_ = took_ms;
    if (++*window_ == 2 * pairs) end_trial();
}

void TransferChoice::end_trial() {
    std::sort(shares_.begin(), shares_.end());
    if (shares_[pairs / 2] >= better) return keep_way();
    window_.reset();
    usual_ = !usual_;
    left_ = pause_ = pause_min;
}

void TransferChoice::keep_way() {
    window_.reset();
    groups_ = num_slower_ = 0;
    window_ms_ = 0;
    left_ = pause_ = std::min(2 * pause_, pause_max);
}

}  // namespace moex
