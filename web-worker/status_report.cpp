#include "web-worker/status_report.h"

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
    if (!rounds_ms_.empty()) {
        std::vector<double> sorted = rounds_ms_;
        std::sort(sorted.begin(), sorted.end());
        status.round_ms_p50 = sorted[sorted.size() / 2];
        status.round_ms_p99 = sorted[std::min(sorted.size() - 1, sorted.size() * 99 / 100)];
    }
    platform_.report(status);
}

void StatusReport::close() {
    closed_ = true;
    if (timer_ != 0) platform_.clear_timer(std::exchange(timer_, 0));
}

void StatusReport::add_round(double round_ms) {
    if (rounds_ms_.size() < rounds_kept)
        rounds_ms_.push_back(round_ms);
    else
        rounds_ms_[next_round_++ % rounds_kept] = round_ms;
}

}  // namespace moex
