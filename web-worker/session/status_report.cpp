#include "web-worker/session/status_report.h"

#include <algorithm>

namespace moex {
namespace {
constexpr double show_every_ms = 100;
constexpr std::size_t rounds_kept = 512;
}  // namespace

const char* worker_phase_name(WorkerPhase phase) {
    switch (phase) {
        case WorkerPhase::starting: return "starting";
        case WorkerPhase::connecting: return "connecting";
        case WorkerPhase::downloading: return "downloading";
        case WorkerPhase::warming: return "warming";
        case WorkerPhase::serving: return "serving";
        case WorkerPhase::paused: return "paused";
        case WorkerPhase::offline: return "offline";
        case WorkerPhase::gpu_lost: return "gpu_lost";
        case WorkerPhase::refused: return "refused";
        case WorkerPhase::failed: return "failed";
        case WorkerPhase::stopped: return "stopped";
    }
    return "unknown";
}

void StatusReport::enter(WorkerPhase phase, std::string detail) {
    entered_ = phase;
    entered_detail_ = std::move(detail);
    if (paused_) return;
    status.phase = entered_;
    status.detail = entered_detail_;
    changed();
}

void StatusReport::pause() {
    paused_ = true;
    status.phase = WorkerPhase::paused;
    status.detail.clear();
    changed();
}

void StatusReport::resume() {
    paused_ = false;
    enter(entered_, std::move(entered_detail_));
}

void StatusReport::changed() {
    if (timer_ != 0 || closed_) return;
    timer_ = platform_.set_timer(show_every_ms, [this] {
        timer_ = 0;
        show();
    });
}

void StatusReport::show() {
    gather_(status);
    if (!rounds_.empty()) {
        status.round_ms_p50 = quantile(&Round::ms, 50);
        status.round_ms_p99 = quantile(&Round::ms, 99);
        status.gpu_us_p50 = quantile(&Round::gpu_us, 50);
    }
    platform_.report(status);
}

void StatusReport::close() {
    closed_ = true;
    if (timer_ != 0) platform_.clear_timer(std::exchange(timer_, 0));
}

void StatusReport::add_round(double round_ms, double gpu_us) {
    if (rounds_.size() < rounds_kept)
        rounds_.push_back({round_ms, gpu_us});
    else
        rounds_[next_round_++ % rounds_kept] = {round_ms, gpu_us};
}

double StatusReport::quantile(double Round::*figure, std::size_t percent) const {
    std::vector<double> all;
    for (const Round& round : rounds_) all.push_back(round.*figure);
    const std::size_t at = std::min(all.size() - 1, all.size() * percent / 100);
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at), all.end());
    return all[at];
}

}  // namespace moex
