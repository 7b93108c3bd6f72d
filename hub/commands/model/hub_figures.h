// The figures of a running hub in /api/status, as `moex-hub model --from-metrics` reads them.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "hub/foresight/cost/token_time.h"
#include "protocol/result.h"

namespace moex {

// Counters and answer times of one worker in one sample. Counters start at zero when the hub or the
// worker starts.
struct WorkerLook {
    double groups = 0;
    double mean_ms = 0;  // mean answer time over the last 64 answers
    // median and 99th percentile of the times of up to 1,024 answers, in steps of an eighth
    double p50_ms = 0, p99_ms = 0;
};
struct HubLook {
    std::string model;
    HubFigures figures;  // has no workers
    std::map<std::uint64_t, WorkerLook> workers;
};
Result<HubLook> read_status(std::string_view json);
// Returns the increase of each counter from the first to the last sample. A worker's mean is taken
// over the samples after the first one. Errors: the hub was restarted between samples, or there was
// no request.
Result<HubFigures> figures_over(std::span<const HubLook> looks);

}  // namespace moex
