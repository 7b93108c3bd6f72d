// Tests the bound on the time that an expert may take to load without delaying a token: its
// formula, and how the core measures it.
#include "hub/dispatch/round/load_window.h"

#include <gtest/gtest.h>

#include "tests/sim/sim_swarm.h"

namespace moex {
namespace {

TEST(LoadWindowTest, OneGroupHasTheHubsTimeAndATripNMoreOfBoth) {
    LoadWindow window{.groups = 1, .hub_ms = 2, .worker_ms = 3, .trip_ms = 5};
    EXPECT_DOUBLE_EQ(window.most_ms(), 2 + 5);
    window.groups = 4;
    EXPECT_DOUBLE_EQ(window.most_ms(), 4 * 2 + 3 * 3 + 5);
}

TEST(LoadWindowTest, TheHubsTimeIsBetweenALayerAndTheNextOfAStepOfFewRows) {
    LoadWindowMeter meter;
    TimePoint now{};
    const auto round = [&](std::uint32_t layer, std::uint32_t rows, Duration before) {
        now += before;
        meter.on_round_begin(layer, rows, now);
        now += 7ms;
        meter.on_round_end(layer, now);
    };
    round(0, 1, 1s);
    round(1, 1, 2ms);
    round(2, 1, 4ms);
    // a round of the next token: the client takes the time before it, so that time does not count
    round(0, 1, 500ms);
    round(1, 17, 90ms);  // a round of 17 rows, as for a prompt, is not measured
    round(2, 1, 3ms);
    EXPECT_DOUBLE_EQ(meter.window(1, 0).hub_ms, 3);
}

TEST(LoadWindowTest, AWorkersTimeIsWithoutItsWaitingAndNoLongerThanTheHubWaited) {
    LoadWindowMeter meter;
    EXPECT_EQ(meter.window(4, 1000).most_ms(), 0) << "nothing is known";
    meter.on_group(10ms, 8000);
    meter.on_group(10ms, 4'000'000'000);
    const LoadWindow window = meter.window(4, 12'000);
    EXPECT_DOUBLE_EQ(window.worker_ms, 3);
    EXPECT_DOUBLE_EQ(window.trip_ms, 1);
    EXPECT_EQ(meter.window(4, 1'000'000).worker_ms, 0) << "a worker said that it waited so long";
}

// The rounds request the layers in order. The simulated hub takes no time between two layers.
TEST(SwarmGroupsTest, WorkersHoldTheirGroupsLayersAndRoundsAreRight) {
    sim::SimOptions options{.num_workers = 0, .seed = 5, .num_layers = 8};
    options.swarm.local_fallback = false;
    options.swarm.replicas = 1;
    options.swarm.placement = parse_placement("groups 4").value();
    sim::SimSwarm swarm(options);
    std::vector<WorkerId> workers;
    for (const char* address : {"10.0.0.1", "10.1.0.1", "10.2.0.1", "10.3.0.1"})
        workers.push_back(swarm.join_as({}, address));
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.run_for(2s);
    EXPECT_EQ(swarm.core().coverage().away, 0u);

    for (std::uint32_t layer = 0; layer < 8; ++layer) {
        const std::uint64_t before = swarm.core().counters().groups_sent;
        const RoundId round = swarm.submit({.layer = layer, .expert_ids = {1, 5, 8, 13}});
        ASSERT_TRUE(swarm.run_until_answered(round));
        EXPECT_FALSE(swarm.outcome(round).wrong);
        EXPECT_EQ(swarm.core().counters().groups_sent - before, 1u)
            << "one worker has all of layer " << layer;
    }
    EXPECT_EQ(swarm.core().counters().load_window.groups, 4u);

    swarm.leave(workers[2]);
    for (std::uint32_t layer = 0; layer < 8; ++layer) {
        const RoundId round = swarm.submit({.layer = layer, .expert_ids = {0, 4, 9, 12}});
        ASSERT_TRUE(swarm.run_until_answered(round)) << layer;
        EXPECT_FALSE(swarm.outcome(round).wrong);
    }
}

}  // namespace
}  // namespace moex
