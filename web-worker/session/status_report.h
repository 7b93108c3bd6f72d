// Shows people the status of a worker, its phase and its figures: on change, at most ten times a
// second. Each part of the worker writes the figures that it knows to `status`. `gather` adds
// figures that are cheaper to compute on demand than to keep up to date.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "web-worker/session/platform.h"

namespace moex {

class StatusReport {
  public:
    StatusReport(Platform& platform, std::function<void(WorkerStatus&)> gather)
        : platform_(platform),
          gather_(std::move(gather)) {}
    ~StatusReport() { close(); }
    StatusReport(const StatusReport&) = delete;

    WorkerStatus status;

    void enter(WorkerPhase phase, std::string detail = {});
    void pause();    // shows the phase `paused` until resume(), whatever phase is entered
    void resume();   // shows the phase that was entered most recently
    void changed();  // shows the status within 100 ms
    void show();     // shows the status now
    void close();    // after this call only show() shows the status
    // Adds the two times of a round: from frame in to frame out, and on the GPU (of a recent round;
    // 0: unknown).
    void add_round(double round_ms, double gpu_us);

  private:
    Platform& platform_;
    std::function<void(WorkerStatus&)> gather_;
    std::uint64_t timer_ = 0;
    bool closed_ = false, paused_ = false;
    WorkerPhase entered_ = WorkerPhase::starting;
    std::string entered_detail_;
    struct Round {
        double ms, gpu_us;
    };
    double quantile(double Round::*figure, std::size_t percent) const;

    std::vector<Round> rounds_;  // times of the newest few hundred rounds
    std::size_t next_round_ = 0;
};

}  // namespace moex
