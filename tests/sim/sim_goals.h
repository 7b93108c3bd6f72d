// The goals of reliability as runs of whole tokens: 48 layers, one round each, the rows of all
// streams in it, as the engine asks. One table says what holds and what does not.
#pragma once

#include "tests/sim/sim_swarm.h"

namespace moex::sim {

struct TokenRun {
    std::uint32_t num_tokens = 200, num_streams = 1;
    Duration between_layers = 300us;  // what the hub computes itself
    // before the token of this number
    std::function<void(SimSwarm&, std::uint32_t)> before = {};
};
struct TokenReport {
    std::vector<double> token_ms;  // of all, failed ones too
    std::uint64_t failed = 0, corrupted = 0;
    SwarmCounters counters;
    std::vector<std::string> violations;

    double quantile_ms(double q) const;
    double longest_ms() const { return quantile_ms(1); }
    // groups beyond the first of each call
    double extra_share() const;
    // Another swarm's tokens beside these.
    void add(const TokenReport& other);
};
// Runs in a swarm that has loaded; `swarm` goes on where it was.
TokenReport run_tokens(SimSwarm& swarm, const TokenRun& run);

struct Goal {
    std::string name, wanted, measured;
    bool holds = false;
    std::vector<std::string> violations;
};
struct GoalOptions {
    std::uint64_t seed = 1;
    HedgePolicy hedge{.mode = HedgeMode::delayed};
    double effort = 1;  // share of the usual number of tokens
    std::string only;   // "R2": those alone; empty: all
};
std::vector<Goal> measure_goals(const GoalOptions& options);

}  // namespace moex::sim
