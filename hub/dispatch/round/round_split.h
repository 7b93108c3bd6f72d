// Where the time of a round goes, as far as workers tell (PROTOCOL.md, GROUP_RESULT): for people,
// nothing is decided by it. Pure; owner: the dispatch strand.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "hub/base/clock.h"
#include "protocol/messages.h"

namespace moex {

// Means over recent groups. What group_ms has beyond worker_ms is the hub's queue, the wire and
// whatever wakes up between them.
struct RoundSplit {
    std::uint64_t groups = 0, gpu_groups = 0;  // that told their times; of them with the GPU's
    double group_ms = 0;                       // from frame queued to answer checked
    double worker_ms = 0;                      // inside the worker
    double gpu_ms = 0;                         // on its GPU

    // What a worker tells may be wrong: it took no longer than the hub waited.
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
