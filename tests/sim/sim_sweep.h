// Compares the policies for second attempts over several kinds of swarms: the time of a token, and
// the cost of second attempts in extra groups. Each pair of policy and swarm gives one row of the
// table; all policies run with the same seeds and the same workers.
#pragma once

#include "tests/sim/sim_goals.h"

namespace moex::sim {

struct SweepRow {
    std::string profile, policy;
    double p50_ms = 0, p99_ms = 0, longest_ms = 0;
    // groups beyond the first one of each call, as a share of the first groups
    double extra_share = 0;
    std::uint64_t failed = 0;
};
struct SweepOptions {
    std::uint64_t seed = 1;  // the first of `num_seeds` seeds
    // number of swarms, one per seed; a row covers the tokens of all seeds
    std::uint32_t num_seeds = 5;
    double effort = 1;              // factor on the usual number of tokens
    std::string only;               // name of the only kind of swarm to measure; empty: all kinds
    std::uint32_t num_threads = 0;  // number of threads; 0: one per processor
};
// Measures all rows. Calls `row` for each row in order, as soon as that row and all rows before it
// are measured. The calls come from the threads of the sweep, one at a time.
void sweep_policies(const SweepOptions& options, const std::function<void(const SweepRow&)>& row);

}  // namespace moex::sim
