// Tests DRAIN: a hub that stops, and a worker that leaves. The worker serves until others have its
// experts, and no longer than its deadline.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/hub/dispatch/swarm_stage.h"

namespace moex::sim {
namespace {

TEST(LeavingWorkersTest, DrainNotifiesServesOnAndClosesAtItsDeadline) {
    SimSwarm swarm(no_workers());
    const WorkerId worker = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.drain(3s);
    // rounds that finish before the deadline of the drain are still answered
    const RoundId round = swarm.submit();
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{worker});

    const auto header = decode_frame_header(
        swarm.frames_to(worker).at(swarm.frames_to(worker).size() - 2));
    EXPECT_EQ(header->type, FrameType::drain);

    const WorkerId newcomer = swarm.connect(false);
    EXPECT_EQ(swarm.closed_with(newcomer), CloseCode::going_away);
    swarm.run_for(3s);
    EXPECT_EQ(swarm.closed_with(worker), CloseCode::going_away);
}

TEST(LeavingWorkersTest, AWorkerThatDrainsGetsNoNewWork) {
    SimSwarm swarm(no_workers());
    const WorkerId leaver = swarm.join(), stayer = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.say(leaver, encode_drain(1000));
    for (int i = 0; i < 6; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{stayer});
    }
}

// In an earlier version a draining worker merely got no new attempts. Its experts had one copy less
// until the worker closed the connection.
TEST(LeavingWorkersTest, AWorkerThatDrainsHandsOverItsExpertsAnswersAndIsClosed) {
    SimOptions options = no_workers();
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    for (int i = 0; i < 3; ++i) swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());

    const RoundId round = swarm.submit({.num_tokens = 6});
    swarm.run_for(1ms);
    WorkerId leaver = 0;
    for (const WorkerView& view : swarm.core().workers())
        if (view.in_flight > 0) leaver = view.id;
    ASSERT_NE(leaver, 0u);

    swarm.say(leaver, encode_drain(10000));
    EXPECT_EQ(swarm.core().worker(leaver)->state, WorkerState::draining);
    EXPECT_EQ(swarm.core().worker(leaver)->units_assigned, 0u);
    EXPECT_FALSE(swarm.closed_with(leaver).has_value());

    std::uint32_t assigned = 0;
    for (const WorkerView& view : swarm.core().workers()) assigned += view.units_assigned;
    // two copies of each expert are assigned to the workers that stay
    EXPECT_EQ(assigned, 2u * 48u);
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.outcome(round).y, swarm.outcome(round).want);

    const auto answered = swarm.answered_by(round);
    EXPECT_NE(std::find(answered.begin(), answered.end(), leaver), answered.end());
    EXPECT_EQ(swarm.closed_with(leaver), CloseCode::going_away);
    EXPECT_EQ(swarm.core().counters().redispatched + swarm.core().counters().timeouts, 0u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

// One copy of each expert and no local backend: the leaver serves until others have its experts.
TEST(LeavingWorkersTest, LeaverServesUntilItsExpertsHaveAnotherHolder) {
    SimOptions options = no_workers();
    options.swarm.local_fallback = false;
    options.swarm.replicas = 1;
    SimSwarm swarm(options);
    WorkerProfile slow_line{};
    slow_line.down_bytes_per_s = 40'000;  // 16 units of 1,000 bytes take 0.4 s
    for (int i = 0; i < 3; ++i) swarm.join_as(slow_line, text("10.", i, ".0.1"));
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId leaver = swarm.workers_alive().front();
    ASSERT_GT(swarm.core().worker(leaver)->units_ready, 0u);

    swarm.say(leaver, encode_drain(10'000));
    EXPECT_EQ(swarm.core().worker(leaver)->state, WorkerState::draining);
    EXPECT_EQ(swarm.core().coverage().covered, 48u);
    const TimePoint begin = swarm.now();
    for (std::uint32_t i = 0; swarm.now() - begin < 3s; ++i) {
        const TimePoint asked = swarm.now();
        const RoundId round = swarm.submit({.layer = i % 3, .num_tokens = 4});
        ASSERT_TRUE(swarm.run_until_answered(round));
        EXPECT_LT(to_ms(swarm.now() - asked), 250) << "no stall";
        EXPECT_EQ(swarm.core().coverage().covered, 48u);
    }
    EXPECT_EQ(swarm.closed_with(leaver), CloseCode::going_away);
    EXPECT_GT(swarm.core().counters().groups_sent, 0u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(LeavingWorkersTest, LeaverWithoutASuccessorLeavesAtOnce) {
    SimOptions options = no_workers();
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const WorkerId only = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.say(only, encode_drain(10'000));
    EXPECT_EQ(swarm.closed_with(only), CloseCode::going_away);
}

TEST(LeavingWorkersTest, LeaverWhoseSuccessorLoadsNothingLeavesAtItsDeadline) {
    SimOptions options = no_workers();
    options.swarm.local_fallback = false;
    options.swarm.replicas = 1;
    SimSwarm swarm(options);
    const WorkerId leaver = swarm.join(), successor = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.stall_loading(successor);
    swarm.say(leaver, encode_drain(4000));
    swarm.run_for(3900ms);
    EXPECT_FALSE(swarm.closed_with(leaver).has_value());
    EXPECT_EQ(swarm.core().coverage().covered, 48u);
    swarm.run_for(200ms);
    EXPECT_EQ(swarm.closed_with(leaver), CloseCode::going_away);
}

TEST(LeavingWorkersTest, AWorkerThatDrainsAndStallsIsClosedAtItsDeadline) {
    SimOptions options = no_workers();
    options.swarm.timeout_max = 10s;
    SimSwarm swarm(options);
    const WorkerId worker = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.stall_compute(worker);
    swarm.submit();
    swarm.run_for(10ms);
    swarm.say(worker, encode_drain(1500));
    swarm.run_for(1400ms);
    EXPECT_FALSE(swarm.closed_with(worker).has_value());

    swarm.run_for(200ms);
    EXPECT_EQ(swarm.closed_with(worker), CloseCode::going_away);
    EXPECT_TRUE(swarm.run_until_idle());
}

}  // namespace
}  // namespace moex::sim
