// Compares the policies for second attempts over several kinds of swarms: the time of a token, and
// its cost in extra groups. Each pair of policy and swarm gives one row; all policies run with the
// same seeds and the same workers.
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
    std::uint64_t seed = 1;         // the first of `num_seeds` seeds
    std::uint32_t num_seeds = 5;    // one swarm per seed; a row covers the tokens of all
    double effort = 1;              // share of the usual number of tokens
    std::string only;               // name of one kind of swarm; empty: all
    std::uint32_t num_threads = 0;  // 0: one per processor
};
// Calls `row` for each row in order, as soon as the row and all rows before it are measured. The
// calls come from the sweep's own threads, one at a time.
void sweep_policies(const SweepOptions& options, const std::function<void(const SweepRow&)>& row);

}  // namespace moex::sim
