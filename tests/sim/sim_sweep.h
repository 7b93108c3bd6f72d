// Policies of second attempts beside each other, over the kinds of swarms there are: what a token
// takes and what it costs in groups. One row a pair, the same seed and the same workers for all.
#pragma once

#include "tests/sim/sim_goals.h"

namespace moex::sim {

struct SweepRow {
    std::string profile, policy;
    double p50_ms = 0, p99_ms = 0, longest_ms = 0;
    double extra_share = 0;  // groups beyond the first of each call
    std::uint64_t failed = 0;
};
struct SweepOptions {
    std::uint64_t seed = 1;
    double effort = 1;  // share of the usual number of tokens
};
// Each row as soon as it is there.
void sweep_policies(const SweepOptions& options, const std::function<void(const SweepRow&)>& row);

}  // namespace moex::sim
