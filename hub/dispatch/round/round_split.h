// Splits the time of a round into the parts of hub, wire and worker, by the times that workers
// report (PROTOCOL.md, GROUP_RESULT). The split is for people to read; no decision depends on it.
// The class is pure. Owner: the dispatch strand.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "hub/base/clock.h"
#include "protocol/messages.h"

namespace moex {

// Mean times over recent groups. The difference between group_ms and worker_ms is spent in the
// hub's queue, on the wire, and in wake-ups between them.
struct RoundSplit {
    // number of groups that reported times, and of groups that reported GPU times
    std::uint64_t groups = 0, gpu_groups = 0;
    double group_ms = 0;   // from the queueing of the request frame to the check of the answer
    double worker_ms = 0;  // part of group_ms inside the worker
    double gpu_ms = 0;     // part of worker_ms on the worker's GPU

    // The times that workers report may be wrong, so each is capped at the time that the hub
    // waited.
    void record(Duration group, const RoundTimes& times) {
        const double took_ms = to_ms(group);
        follow(group_ms, took_ms, ++groups);
        follow(worker_ms, std::min(took_ms, times.worker_us / 1000.0), groups);
        if (times.gpu_us > 0)
            follow(gpu_ms, std::min(took_ms, times.gpu_us / 1000.0), ++gpu_groups);
    }

  private:
    static void follow(double& mean, double value, std::uint64_t count) {
        mean += (value - mean) / static_cast<double>(std::min<std::uint64_t>(count, 64));
    }
};

}  // namespace moex
