// Tests a hub that computes experts itself and asks only workers that are faster.
#include <gtest/gtest.h>

#include "tests/hub/dispatch/swarm_stage.h"

namespace moex::sim {
namespace {

// A hub that takes 5 ms for a round, together with workers that `profile` describes.
struct HubAndWorkers {
    SimSwarm swarm;
    std::vector<WorkerId> workers;

    explicit HubAndWorkers(const WorkerProfile& profile, std::uint32_t num_workers = 1,
                           Duration hub_per_pair = {})
        : swarm(options(hub_per_pair)) {
        for (std::uint32_t i = 0; i < num_workers; ++i)
            workers.push_back(swarm.join_as(profile, text("10.", i, ".0.1")));
        EXPECT_TRUE(swarm.run_until_ready());
    }
    static SimOptions options(Duration hub_per_pair) {
        SimOptions options{.num_workers = 0, .seed = 5, .latency = 100us};
        options.local_compute = 5ms;
        options.local_per_pair = hub_per_pair;
        options.swarm.use_workers = UseWorkers::automatic;
        return options;
    }
    // Runs rounds for `length` of time, one after the other, and returns their mean time in ms.
    double rounds(Duration length, std::uint32_t num_tokens = 1) {
        const TimePoint begin = swarm.now();
        std::uint32_t count = 0;
        for (; swarm.now() - begin < length; ++count) {
            const RoundId round = swarm.submit({.layer = count % 3, .num_tokens = num_tokens});
            EXPECT_TRUE(swarm.run_until_answered(round));
            EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
            swarm.forget(round);
        }
        return to_ms(swarm.now() - begin) / count;
    }
    WorkerView view(std::size_t i = 0) { return *swarm.core().worker(workers[i]); }
};

TEST(ReserveTest, SlowWorkerIsInReserveAndDelaysNoRound) {
    HubAndWorkers stage({.compute = 50ms});
    EXPECT_LT(stage.rounds(60s), 5.05);
    EXPECT_EQ(stage.view().state, WorkerState::reserve);
    EXPECT_GT(stage.view().units_ready, 0u) << "it keeps its experts";
    const SwarmCounters counts = stage.swarm.core().counters();
    EXPECT_GE(counts.probes_sent, 3u);
    EXPECT_LE(counts.probes_sent, 13u) << "one hundredth of the worker's time";
    EXPECT_EQ(counts.groups_sent, counts.probes_sent);
    EXPECT_EQ(stage.view().timeouts, 0u);
}

TEST(ReserveTest, FastWorkerIsAskedAfterItsFirstProbe) {
    HubAndWorkers stage({.compute = 500us});
    stage.rounds(1s);
    EXPECT_LT(stage.rounds(30s), 2.5);
    EXPECT_EQ(stage.view().state, WorkerState::active);
    EXPECT_LT(stage.swarm.core().counters().probes_sent, 5u);
}

TEST(ReserveTest, WorkerServesManyRowsAndNotOne) {
    HubAndWorkers stage({.compute = 15ms}, 1, 1ms);
    EXPECT_LT(stage.rounds(30s), 9.1) << "the hub takes 5 ms and 4 pairs";
    EXPECT_EQ(stage.view().state, WorkerState::reserve);

    stage.rounds(10s, 16);
    EXPECT_LT(stage.rounds(30s, 16), 35) << "the hub would take 5 ms and 64 pairs";
    EXPECT_EQ(stage.view().state, WorkerState::active);

    EXPECT_LT(stage.rounds(30s), 9.1);
    EXPECT_EQ(stage.view().state, WorkerState::reserve);
}

TEST(ReserveTest, WorkerReturnsWhenItBecomesFaster) {
    HubAndWorkers stage({.compute = 50ms});
    stage.rounds(60s);
    EXPECT_EQ(stage.view().state, WorkerState::reserve);
    stage.swarm.slow_down(stage.workers[0], 500us);
    stage.rounds(60s);
    EXPECT_LT(stage.rounds(10s), 2.5);
    EXPECT_EQ(stage.view().state, WorkerState::active);
}

TEST(ReserveTest, WorkerThatBecomesSlowLeavesTheRounds) {
    HubAndWorkers stage({.compute = 500us});
    stage.rounds(10s);
    EXPECT_EQ(stage.view().state, WorkerState::active);
    stage.swarm.slow_down(stage.workers[0], 100ms);
    stage.rounds(2s);
    EXPECT_LT(stage.rounds(30s), 5.3);
    EXPECT_EQ(stage.view().state, WorkerState::reserve);
}

// While workers compute everything, the hub measures itself now and then.
TEST(ReserveTest, HubThatBecomesFasterComputesItself) {
    HubAndWorkers stage({.compute = 2ms});
    stage.rounds(10s);
    EXPECT_EQ(stage.view().state, WorkerState::active);
    stage.swarm.slow_down_hub(200us);
    stage.rounds(60s);
    EXPECT_LT(stage.rounds(10s), 0.3);
    EXPECT_EQ(stage.view().state, WorkerState::reserve);
}

TEST(ReserveTest, SeveralWorkersShareALargeRound) {
    // Each worker alone takes longer than the hub for 256 pairs, four of them do not.
    HubAndWorkers stage({.compute = 1ms, .per_pair = 400us}, 4, 300us);
    stage.rounds(20s, 64);
    EXPECT_LT(stage.rounds(20s, 64), 60) << "the hub takes 81.8 ms";
}

TEST(ReserveTest, SlowWorkerBesideAFastOneStaysInReserve) {
    HubAndWorkers stage({.compute = 500us});
    stage.workers.push_back(stage.swarm.join_as({.compute = 80ms}, "10.9.0.1"));
    ASSERT_TRUE(stage.swarm.run_until_ready());
    stage.rounds(20s);
    EXPECT_LT(stage.rounds(30s), 2.5);
    EXPECT_EQ(stage.view(0).state, WorkerState::active);
    EXPECT_EQ(stage.view(1).state, WorkerState::reserve);
}

TEST(ReserveTest, HubWithoutFallbackAsksSlowWorkers) {
    HubAndWorkers stage({.compute = 50ms});
    stage.rounds(10s);
    stage.swarm.core().set_local_fallback(false);
    EXPECT_GT(stage.rounds(10s), 50);
    EXPECT_EQ(stage.view().state, WorkerState::active);
}

TEST(ReserveTest, AlwaysAsksSlowWorkers) {
    SimOptions options = HubAndWorkers::options({});
    options.swarm.use_workers = UseWorkers::always;
    SimSwarm swarm(options);
    const WorkerId worker = swarm.join_as({.compute = 50ms}, "10.0.0.1");
    ASSERT_TRUE(swarm.run_until_ready());
    const RoundId round = swarm.submit();
    ASSERT_TRUE(swarm.run_until_answered(round));
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{worker});
}

// A worker that answers no probe is not punished as a worker that fails requests.
TEST(ReserveTest, UnansweredProbesEjectNobody) {
    HubAndWorkers stage({.compute = 50ms});
    stage.swarm.stall_compute(stage.workers[0]);
    EXPECT_LT(stage.rounds(60s), 5.05);
    EXPECT_EQ(stage.view().health, Health::healthy);
    EXPECT_EQ(stage.view().state, WorkerState::reserve);
    stage.swarm.stall_compute(stage.workers[0], false);
    stage.swarm.slow_down(stage.workers[0], 500us);
    stage.rounds(120s);
    EXPECT_EQ(stage.view().state, WorkerState::active);
}

}  // namespace
}  // namespace moex::sim
