// Runs a hundred seeds with all faults and checks the invariants: each call is answered exactly
// once and correctly, calls are sent to holders only, queues are bounded, and every round ends.
#include <gtest/gtest.h>

#include "tests/sim/sim_goals.h"

namespace moex::sim {
namespace {

class SimSeedsTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(SimSeedsTest, EveryInvariantHoldsUnderAllFaults) {
    std::uint64_t rounds_ok = 0, timeouts = 0, removed = 0, late = 0, gathered = 0;
    for (std::uint64_t seed = GetParam(); seed < GetParam() + 10; ++seed) {
        const SimReport report = run_simulation({.seed = seed,
                                                 .num_workers = 10,
                                                 .num_rounds = 150,
                                                 .length = 60s,
                                                 .faults = *parse_faults("all")});
        EXPECT_TRUE(report.violations.empty()) << "moex-sim --workers 10 --rounds 150 --seed "
                                               << seed << ": " << report.violations.front();
        EXPECT_GT(report.rounds_ok, report.rounds * 8 / 10) << "seed " << seed;
        rounds_ok += report.rounds_ok;
        timeouts += report.counters.timeouts;
        removed += report.counters.removed;
        late += report.counters.late;
        gathered += report.frames_gathered;
    }
    EXPECT_GT(gathered, 10u * 100);
    EXPECT_GT(timeouts, 0u);  // shows that the faults had an effect
    EXPECT_GT(removed, 0u);
    EXPECT_GT(late, 0u);
    RecordProperty("rounds_ok", static_cast<int>(rounds_ok));
}
INSTANTIATE_TEST_SUITE_P(HundredSeeds, SimSeedsTest, testing::Range<std::uint64_t>(1, 101, 10));

TEST(SimReplayTest, SameSeedGivesTheSameEventLogHash) {
    const SimRun run{.seed = 42, .faults = *parse_faults("all")};
    const SimReport first = run_simulation(run), second = run_simulation(run);
    EXPECT_EQ(first.event_hash, second.event_hash);
    EXPECT_EQ(first.num_events, second.num_events);
    SimRun other = run;
    other.seed = 43;
    EXPECT_NE(run_simulation(other).event_hash, first.event_hash);
}

TEST(SimReplayTest, WithoutFaultsNothingIsLostLateOrRefused) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        const SimReport report = run_simulation(
            {.seed = seed, .num_workers = 6, .num_rounds = 100});
        EXPECT_TRUE(report.violations.empty()) << report.violations.front();
        EXPECT_EQ(report.rounds_failed, 0u);
        EXPECT_EQ(report.counters.timeouts + report.counters.bad_frames +
                      report.counters.bad_answers + report.counters.removed,
                  0u)
            << "seed " << seed;
    }
}

// This test runs a few tokens of each goal. The measured values matter only in the table of
// moex-sim --tokens; the test only checks that the core's invariants hold in these runs, too.
TEST(SimGoalsTest, RunsOfWholeTokensBreakNoInvariant) {
    for (const Goal& goal : measure_goals({.seed = 3, .effort = 0.05}))
        EXPECT_TRUE(goal.violations.empty()) << goal.name << ": " << goal.violations.front();
}

// Without checks of answers, the report counts the false rows of liars, and their provenance says
// that they are unchecked. With checks, no false row remains.
TEST(SimGoalsTest, FalseRowsAreCounted) {
    for (const bool checks : {false, true}) {
        SimOptions options{.num_workers = 0, .num_layers = 48, .num_experts = 8};
        options.swarm.checks.on = options.swarm.checks.judge = checks;
        SimSwarm swarm(options);
        for (std::uint32_t i = 0; i < 4; ++i)
            swarm.join_as({.lie = i == 0 ? Lie::scaled_1_5 : Lie::none}, text("10.0.0.", i));
        swarm.run_until_ready();

        const TokenReport report = run_tokens(swarm, {.num_tokens = 4, .num_streams = 3});
        EXPECT_EQ(report.failed, 0u);
        EXPECT_EQ(report.rows, 4u * 3 * 48);
        EXPECT_EQ(report.rows_wrong_unmarked, 0u);
        EXPECT_EQ(report.rows_wrong > 0, !checks) << report.rows_wrong;
        EXPECT_EQ(report.changed > 0, !checks);
        EXPECT_LE(report.changed, 12u);
    }
}

// Simulated time does not depend on this machine, so that the goals of spans hold here, too.
TEST(SimSpansTest, GoalsHold) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed)
        for (const char* name : {"R1-spans", "R2-spans", "R4-spans", "R6-spans"})
            for (const Goal& goal : measure_goals({.seed = seed, .effort = 0.5, .only = name})) {
                EXPECT_TRUE(goal.holds) << seed << ", " << goal.name << ": " << goal.measured;
                EXPECT_TRUE(goal.violations.empty()) << goal.name << ": " << goal.violations[0];
            }
}

TEST(SimGoalsTest, HonestWorkersAreNotAccused) {
    const std::vector<Goal> goals = measure_goals(
        {.seed = 5, .effort = 0.0005, .only = "R4-honest"});
    ASSERT_EQ(goals.size(), 1u);
    EXPECT_TRUE(goals[0].holds) << goals[0].measured;
    EXPECT_TRUE(goals[0].violations.empty());
}

TEST(SimReplayTest, UnknownFaultIsNamed) {
    const auto faults = parse_faults("loss,gremlins");
    ASSERT_FALSE(faults.ok());
    EXPECT_NE(faults.error().message.find("gremlins"), std::string::npos);
}

}  // namespace
}  // namespace moex::sim
