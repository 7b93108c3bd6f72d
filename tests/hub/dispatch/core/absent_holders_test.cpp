// Tests rounds that need experts without a holder: whether such a round waits for a holder, and how
// long.
#include "tests/hub/dispatch/swarm_stage.h"

namespace moex::sim {
namespace {

TEST(SwarmCoreTest, LocalBackendAnswersWithoutHolders) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    SimSwarm swarm(options);
    const RoundId round = swarm.submit({.num_tokens = 5});
    ASSERT_TRUE(swarm.run_until_idle());
    expect_exact(swarm, round);
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{0});
    EXPECT_EQ(swarm.core().counters().calls_remote, 0u);
}

TEST(SwarmCoreTest, WithoutLocalWeightsARoundWaitsForAWorkerToJoin) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const RoundId round = swarm.submit();
    swarm.run_for(1s);
    EXPECT_FALSE(swarm.outcome(round).answer.has_value());

    const WorkerId saviour = swarm.join();
    ASSERT_TRUE(swarm.run_until_idle());
    expect_exact(swarm, round);
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{saviour});
}

TEST(SwarmCoreTest, WithoutLocalWeightsAndHoldersARoundEndsUnavailableAfterAShortWait) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const TimePoint start = swarm.now();
    const RoundId round = swarm.submit();

    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - start), 2000, 20);
    ASSERT_FALSE(swarm.outcome(round).answer->ok());
    EXPECT_EQ(swarm.outcome(round).answer->error().code, ErrorCode::unavailable);
    EXPECT_NE(swarm.outcome(round).answer->error().message.find("no worker holds expert"),
              std::string::npos)
        << swarm.outcome(round).answer->error().message;
}

TEST(SwarmCoreTest, WhenTheLastHolderLeavesInMidRoundTheRoundWaitsForItsReturn) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const WorkerId worker = swarm.workers_alive().front();
    swarm.stall_compute(worker);
    const RoundId round = swarm.submit();
    swarm.run_for(100ms);
    const TimePoint left = swarm.now();
    swarm.leave(worker);

    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - left), 8000, 100);
    EXPECT_FALSE(swarm.outcome(round).answer->ok());
}

// A tab with a reset GPU needs a few seconds to return. In an earlier version the chat that waited
// for it failed after two seconds with "no worker holds expert 0".
TEST(SwarmCoreTest, SoleHolderBackAfterFiveSecondsAnswersTheRound) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const WorkerId first = swarm.join(Peer::ours, "10.0.0.1", "the tab");
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.leave(first);
    swarm.run_for(1s);
    const RoundId round = swarm.submit();
    swarm.run_for(5s);
    EXPECT_FALSE(swarm.outcome(round).answer.has_value());

    const WorkerId again = swarm.join(Peer::ours, "10.0.0.1", "the tab");
    ASSERT_TRUE(swarm.run_until_idle());
    expect_exact(swarm, round);
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{again});
}

TEST(SwarmCoreTest, AHolderOfLongAgoIsNotWaitedFor) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.leave(swarm.workers_alive().front());
    swarm.run_for(61s);
    const TimePoint start = swarm.now();
    const RoundId round = swarm.submit();
    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - start), 2000, 20);
}

TEST(SwarmCoreTest, AHolderThatCameAndLeftGivesTheNextOneItsTimeAgain) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const RoundId round = swarm.submit();
    swarm.run_for(1700ms);
    const WorkerId worker = swarm.join();
    swarm.stall_compute(worker);
    swarm.run_for(350ms);
    ASSERT_FALSE(swarm.outcome(round).answer.has_value());

    const TimePoint left = swarm.now();
    swarm.leave(worker);
    // The round would wait eight seconds for a holder from here on, but a whole round may take at
    // most ten seconds.
    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - left), 7950, 100);
}

TEST(SwarmCoreTest, AHolderThatAnswersNothingIsWorthTheWholeDeadline) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.stall_compute(swarm.workers_alive().front());
    const TimePoint start = swarm.now();
    const RoundId round = swarm.submit();
    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - start), 10000, 20);
    ASSERT_FALSE(swarm.outcome(round).answer->ok());
    EXPECT_EQ(swarm.outcome(round).answer->error().code, ErrorCode::unavailable);
}

}  // namespace
}  // namespace moex::sim
