// What people see of a worker: its phase and its figures,
// shown on change and at most ten times a second.
// Each part of the worker writes the figures it knows;
// `gather` adds what is cheaper to ask for than to keep.
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
    void pause();    // shows paused, whatever is entered, until
    void resume();   // which shows what was entered last
    void changed();  // shown within 100 ms
    void show();     // now
    void close();    // from here on only show() shows anything
    // frame in to frame out; a recent round's time on the GPU, 0: not known
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

    std::vector<Round> rounds_;  // the newest few hundred
    std::size_t next_round_ = 0;
};

}  // namespace moex
