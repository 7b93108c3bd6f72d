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
    std::uint64_t seed = 1;         // the first of so many
    std::uint32_t num_seeds = 5;    // a swarm each, their tokens together are a row
    double effort = 1;              // share of the usual number of tokens
    std::string only;               // the profile; empty: all
    std::uint32_t num_threads = 0;  // 0: as many as there are processors
};
// Rows in order, each as soon as it is there.
void sweep_policies(const SweepOptions& options, const std::function<void(const SweepRow&)>& row);

}  // namespace moex::sim
