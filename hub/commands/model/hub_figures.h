// What a running hub tells of itself at /api/status, as `moex-hub model --from-metrics` reads it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "hub/foresight/cost/token_time.h"
#include "protocol/result.h"

namespace moex {

// Counters are since the hub's start, or since each worker's.
struct WorkerLook {
    double groups = 0;
    double mean_ms = 0;             // of its last 64 answers
    double p50_ms = 0, p99_ms = 0;  // of up to 1,024, in steps of an eighth
};
struct HubLook {
    std::string model;
    HubFigures figures;  // without workers
    std::map<std::uint64_t, WorkerLook> workers;
};
Result<HubLook> read_status(std::string_view json);
// What happened from the first to the last look; a worker's mean is that of the looks behind the
// first. Errors: the hub was started again, or nothing was asked in between.
Result<HubFigures> figures_over(std::span<const HubLook> looks);

}  // namespace moex
