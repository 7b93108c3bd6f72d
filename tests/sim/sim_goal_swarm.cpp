#include "tests/sim/sim_goal_swarm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace moex::sim {

std::string number(double value, int digits) {
    char out[32];
    std::snprintf(out, sizeof out, "%.*f", digits, value);
    return out;
}

WorkerProfile usual_profile(std::mt19937_64& random) {
    std::lognormal_distribution<double> speed(0, 0.25);
    return {.compute = Duration(static_cast<std::int64_t>(16e6 * speed(random))),
            .spread = 0.1,
            .stall = 0.01,
            .stall_min = 100ms,
            .stall_max = 1000ms,
            .never = 1e-4,
            .up_bytes_per_s = 2'500'000,
            .down_bytes_per_s = goal_down_bytes_per_s};
}

SimOptions goal_options(const GoalOptions& goal, std::uint32_t num_workers, bool local_fallback) {
    constexpr std::uint32_t num_experts = 128;
    // Half of the workers together have memory for one and a half copies of all experts. `room` is
    // the memory of one worker, in experts.
    const std::uint32_t room = 3 * goal_layers * num_experts / num_workers;
    SimOptions options{.num_workers = 0,
                       .seed = goal.seed,
                       .num_layers = goal_layers,
                       .num_experts = num_experts,
                       .top_k = 8,
                       .budget_experts = room,
                       .latency = 1ms,
                       .blob_bytes = goal_blob_bytes};
    options.swarm.local_fallback = local_fallback;
    options.swarm.hedge = goal.hedge;
    return options;
}

GoalSwarm::GoalSwarm(const GoalOptions& goal, std::uint32_t num_workers, bool local_fallback,
                     bool stalls)
    : GoalSwarm(goal, goal_options(goal, num_workers, local_fallback), num_workers, stalls) {}

GoalSwarm::GoalSwarm(const GoalOptions& goal, const SimOptions& options, std::uint32_t num_workers,
                     bool stalls)
    : random(goal.seed),
      swarm(options) {
    for (std::uint32_t i = 0; i < num_workers; ++i) {
        WorkerProfile profile = usual_profile(random);
        if (!stalls) profile.stall = profile.never = 0;
        swarm.join_as(profile, text("10.", i % 8, ".", i / 8, ".1"));
    }
    swarm.run_until_ready(1h);
}

TokenReport GoalSwarm::tokens(std::uint32_t num_tokens, std::uint32_t num_streams) {
    return run_tokens(swarm, {.num_tokens = num_tokens, .num_streams = num_streams});
}

std::uint32_t scaled(const GoalOptions& goal, double num_tokens) {
    return std::max(4u, static_cast<std::uint32_t>(num_tokens * goal.effort));
}

double TokenReport::quantile_ms(double q) const {
    if (token_ms.empty()) return 0;
    std::vector<double> sorted = token_ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size() - 1)))];
}

double TokenReport::extra_share() const {
    const auto extra = static_cast<double>(counters.hedges_sent + counters.groups_again);
    return extra / std::max(1.0, static_cast<double>(counters.groups_sent) - extra);
}

void TokenReport::add(const TokenReport& other) {
    token_ms.insert(token_ms.end(), other.token_ms.begin(), other.token_ms.end());
    failed += other.failed;
    changed += other.changed;
    rows += other.rows;
    rows_wrong += other.rows_wrong;
    rows_wrong_unmarked += other.rows_wrong_unmarked;
    counters.hedges_sent += other.counters.hedges_sent;
    counters.groups_again += other.counters.groups_again;
    counters.groups_sent += other.counters.groups_sent;
    counters.timeouts += other.counters.timeouts;
    violations.insert(violations.end(), other.violations.begin(), other.violations.end());
}

namespace {

// Counts the false rows of a round in `report`, and sets changed[i] if the row of stream i is
// false. A false row is unmarked if the hub claims to have verified all of the row's remote pairs.
void count_rows(const RoundOutcome& outcome, std::vector<bool>& changed, TokenReport& report) {
    if (!outcome.answer || !outcome.answer->ok()) return;
    report.rows += changed.size();
    for (const std::uint32_t row : outcome.rows_wrong) {
        const RowProvenance& said = (*outcome.answer)->rows[row];
        ++report.rows_wrong;
        report.rows_wrong_unmarked += said.pairs_verified == said.pairs_remote;
        changed[row] = true;
    }
}

}  // namespace

TokenReport run_tokens(SimSwarm& swarm, const TokenRun& run) {
    TokenReport report;
    const SwarmCounters before = swarm.core().counters();
    for (std::uint32_t token = 0; token < run.num_tokens; ++token) {
        if (run.before) run.before(swarm, token);
        const TimePoint start = swarm.now();
        bool ok = true;
        std::vector<bool> changed(run.num_streams);
        for (std::uint32_t layer = 0; ok && layer < goal_layers; ++layer) {
            const RoundId round = swarm.submit({.layer = layer, .num_tokens = run.num_streams});
            ok = swarm.run_until_answered(round);
            count_rows(swarm.outcome(round), changed, report);
            swarm.forget(round);
            swarm.run_for(run.between_layers);
        }
        report.token_ms.push_back(to_ms(swarm.now() - start));
        report.failed += !ok;
        report.changed += static_cast<std::uint64_t>(std::ranges::count(changed, true));
    }
    report.counters = swarm.core().counters();
    report.counters.hedges_sent -= before.hedges_sent;
    report.counters.groups_again -= before.groups_again;
    report.counters.groups_sent -= before.groups_sent;
    report.counters.timeouts -= before.timeouts;
    report.violations = swarm.violations();
    return report;
}

}  // namespace moex::sim
