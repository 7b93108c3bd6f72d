// Provides the swarm in which the reliability goals are measured, and runs whole tokens in it. The
// model has 48 layers of 128 experts. The workers are ordinary tabs; half of them together have
// memory for one and a half copies of all experts. A token takes one round per layer. As with the
// engine, a round contains one row of each stream, that is, of each text that is generated at the
// same time.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {

struct TokenRun {
    std::uint32_t num_tokens = 200, num_streams = 1;
    Duration between_layers = 300us;  // time that the hub itself computes between two layers
    // called before each token, with the number of the token
    std::function<void(SimSwarm&, std::uint32_t)> before = {};
};
struct TokenReport {
    std::vector<double> token_ms;  // time of each token, including tokens that failed
    std::uint64_t failed = 0;
    // number of tokens, over all streams, that have a false row in any layer
    std::uint64_t changed = 0;
    // Rows of all layers and streams. `rows`: computed rows. `rows_wrong`: false rows.
    // `rows_wrong_unmarked`: false rows with a provenance that claims that the hub verified all of
    // the row's remote pairs.
    std::uint64_t rows = 0, rows_wrong = 0, rows_wrong_unmarked = 0;
    SwarmCounters counters;
    std::vector<std::string> violations;

    double quantile_ms(double q) const;
    double longest_ms() const { return quantile_ms(1); }
    // number of groups beyond the first one of each call, as a share of the first groups
    double extra_share() const;
    // Adds the tokens and counters of another swarm's report to this report.
    void add(const TokenReport& other);
};
// Runs `run.num_tokens` tokens in a swarm in which all units are loaded. Simulated time continues
// from the swarm's present time. The counters in the report count this run alone.
TokenReport run_tokens(SimSwarm& swarm, const TokenRun& run);

// One row of the table of reliability goals.
struct Goal {
    std::string name, wanted, measured;
    bool holds = false;
    std::vector<std::string> violations;
};
struct GoalOptions {
    std::uint64_t seed = 1;
    HedgePolicy hedge{.mode = HedgeMode::delayed};
    double effort = 1;  // factor on the usual number of tokens
    std::string only;   // name of the goals to measure, such as "R2"; empty: all
};
inline constexpr std::uint32_t goal_layers = 48;
inline constexpr std::uint32_t goal_blob_bytes = 2'500'000;  // size of one expert's weights
// download rate of one tab's connection
inline constexpr std::uint32_t goal_down_bytes_per_s = 10'000'000;

// Formats `value` with `digits` decimals for a table cell.
std::string number(double value, int digits = 0);

// Draws the profile of an ordinary tab with its own connection. Tabs differ in speed; the median
// time of a group is 20 ms over all tabs. One group in a hundred stalls, and one in ten thousand is
// never answered.
WorkerProfile usual_profile(std::mt19937_64& random);

// Returns the options of the swarm that the head of this file describes. The swarm has no workers
// yet.
SimOptions goal_options(const GoalOptions& goal, std::uint32_t num_workers, bool local_fallback);

// A swarm with the workers of a goal. The constructor returns when the workers have loaded their
// units.
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
