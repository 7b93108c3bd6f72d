// The swarm that the goals of reliability are measured in: 48 layers of 128 experts, ordinary tabs,
// of which half have room for one and a half copies of everything. Runs of whole tokens in it: one
// round a layer, the rows of all streams in it, as the engine asks.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

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
    std::uint64_t failed = 0;
    std::uint64_t changed = 0;  // tokens of a stream with a false row in any layer
    // Of all layers and streams: computed, false, and said to have been computed again although.
    std::uint64_t rows = 0, rows_wrong = 0, rows_wrong_unmarked = 0;
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
inline constexpr std::uint32_t goal_layers = 48;
inline constexpr std::uint32_t goal_blob_bytes = 2'500'000;         // of one expert
inline constexpr std::uint32_t goal_down_bytes_per_s = 10'000'000;  // of one tab's line

// As a table shows it.
std::string number(double value, int digits = 0);

// Ordinary tabs on lines of their own, fast and slow ones among them: the median is 20 ms, one
// group of a hundred stalls, one of ten thousand is never answered.
WorkerProfile usual_profile(std::mt19937_64& random);

SimOptions goal_options(const GoalOptions& goal, std::uint32_t num_workers, bool local_fallback);

// Its workers have loaded all that they were assigned.
struct GoalSwarm {
    GoalSwarm(const GoalOptions& goal, std::uint32_t num_workers, bool local_fallback,
              bool stalls = true);
    GoalSwarm(const GoalOptions& goal, const SimOptions& options, std::uint32_t num_workers,
              bool stalls);
    TokenReport tokens(std::uint32_t num_tokens, std::uint32_t num_streams = 1);

    std::mt19937_64 random;
    SimSwarm swarm;
};

// The effort's share of `num_tokens`, four at the least.
std::uint32_t scaled(const GoalOptions& goal, double num_tokens);

}  // namespace moex::sim
