// Provides the swarm in which the reliability goals are measured, and runs whole tokens in it.
// The model has 48 layers of 128 experts. The workers are ordinary tabs; half of them together have
// memory for one and a half copies of all experts. A token takes one round per layer, and a round
// contains one row of each stream, as the engine submits it.
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
    // called before each token, with the token's number
    std::function<void(SimSwarm&, std::uint32_t)> before = {};
};
struct TokenReport {
    std::vector<double> token_ms;  // times of all tokens, failed ones included
    std::uint64_t failed = 0;
    std::uint64_t changed = 0;  // tokens of a stream with a false row in any layer
    // Rows of all layers and streams: computed rows, false rows, and false rows with a provenance
    // that claims that the hub verified all of the row's remote pairs.
    std::uint64_t rows = 0, rows_wrong = 0, rows_wrong_unmarked = 0;
    SwarmCounters counters;
    std::vector<std::string> violations;

    double quantile_ms(double q) const;
    double longest_ms() const { return quantile_ms(1); }
    // groups beyond the first of each call, as a share of the first groups
    double extra_share() const;
    // Adds the tokens and counters of another swarm's report to this report.
    void add(const TokenReport& other);
};
// Runs `run.num_tokens` tokens in a swarm in which all units are loaded. Simulated time
// continues from the swarm's present time. Counters in the report are those of this run alone.
TokenReport run_tokens(SimSwarm& swarm, const TokenRun& run);

// One row of the table of goals.
struct Goal {
    std::string name, wanted, measured;
    bool holds = false;
    std::vector<std::string> violations;
};
struct GoalOptions {
    std::uint64_t seed = 1;
    HedgePolicy hedge{.mode = HedgeMode::delayed};
    double effort = 1;  // share of the usual number of tokens
    std::string only;   // "R2": only goals of this name; empty: all
};
inline constexpr std::uint32_t goal_layers = 48;
inline constexpr std::uint32_t goal_blob_bytes = 2'500'000;         // of one expert
inline constexpr std::uint32_t goal_down_bytes_per_s = 10'000'000;  // of one tab's connection

// Formats `value` with `digits` decimals for a table cell.
std::string number(double value, int digits = 0);

// Draws the profile of an ordinary tab with a connection of its own. Tabs differ in speed; the
// median of a group's time is 20 ms over all tabs. One group in a hundred stalls, and one in ten
// thousand is never answered.
WorkerProfile usual_profile(std::mt19937_64& random);

// Returns the options of the swarm described at the head of this file, without workers.
SimOptions goal_options(const GoalOptions& goal, std::uint32_t num_workers, bool local_fallback);

// A swarm with the workers of a goal. The constructor returns when they have loaded their units.
struct GoalSwarm {
    GoalSwarm(const GoalOptions& goal, std::uint32_t num_workers, bool local_fallback,
              bool stalls = true);
    GoalSwarm(const GoalOptions& goal, const SimOptions& options, std::uint32_t num_workers,
              bool stalls);
    TokenReport tokens(std::uint32_t num_tokens, std::uint32_t num_streams = 1);

    std::mt19937_64 random;
    SimSwarm swarm;
};

// Returns `num_tokens` times `goal.effort`, but at least four.
std::uint32_t scaled(const GoalOptions& goal, double num_tokens);

}  // namespace moex::sim
