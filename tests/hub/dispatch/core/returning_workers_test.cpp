// Tests workers that return: after a reload, from another network, or after a restart of the hub.
// The tests count the bytes that workers download.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

// A swarm of sixteen tabs that together have memory for three copies of the model.
struct ReturningWorkersTest : testing::Test {
    static SimOptions options() {
        SimOptions options{
            .num_workers = 0, .seed = 7, .num_layers = 12, .num_experts = 32, .budget_experts = 72};
        options.swarm.local_fallback = false;
        return options;
    }
    void fill(SimSwarm& swarm) {
        for (int i = 0; i < 16; ++i) join(swarm, i);
        EXPECT_TRUE(swarm.run_until_ready());
        swarm.run_for(30s);
        EXPECT_TRUE(swarm.run_until_ready());
    }
    WorkerId join(SimSwarm& swarm, int tab) {
        const WorkerId id = swarm.join(Peer::ours, text("10.", tab, ".0.1"), text("tab-", tab));
        worker_of_tab[tab] = id;
        return id;
    }
    std::map<int, WorkerId> worker_of_tab;
};

// In an earlier version a reload of one tab moved 2.7 GB with Qwen3-30B: other workers were ordered
// to load the units of the reloaded tab, and the tab was ordered to load units of other workers.
TEST_F(ReturningWorkersTest, AReloadMovesNoByte) {
    SimSwarm swarm(options());
    fill(swarm);
    const std::uint64_t before = swarm.bytes_downloaded();
    const std::uint32_t held = swarm.core().worker(worker_of_tab[5])->units_ready;

    swarm.leave(worker_of_tab[5]);
    swarm.run_for(4s);
    const WorkerId back = join(swarm, 5);
    swarm.run_for(60s);
    EXPECT_EQ(swarm.bytes_downloaded(), before);
    EXPECT_EQ(swarm.core().worker(back)->units_ready, held);
    EXPECT_EQ(swarm.core().coverage().replicas_min, 2u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

// The worker changes its network and connects again before the hub notices that the old connection
// is dead.
TEST_F(ReturningWorkersTest, AConnectionThatReplacesItsGhostMovesNoByte) {
    SimSwarm swarm(options());
    fill(swarm);
    const std::uint64_t before = swarm.bytes_downloaded();
    swarm.stall(worker_of_tab[3]);
    join(swarm, 3);
    swarm.run_for(60s);
    EXPECT_EQ(swarm.bytes_downloaded(), before);
    EXPECT_EQ(swarm.core().coverage().replicas_min, 2u);
}

// The worker returns after a night. Its place is no longer kept, but it is assigned the units that
// it has cached.
TEST_F(ReturningWorkersTest, LateReturnGetsItsCachedUnits) {
    SimSwarm swarm(options());
    fill(swarm);
    swarm.leave(worker_of_tab[5]);
    swarm.run_for(60s);
    const std::uint64_t before = swarm.bytes_downloaded();
    const WorkerId back = join(swarm, 5);
    swarm.run_for(60s);
    EXPECT_EQ(swarm.bytes_downloaded(), before);
    EXPECT_GT(swarm.core().worker(back)->units_ready, 0u);
}

TEST_F(ReturningWorkersTest, FreshHubAssignsCachedUnits) {
    SimSwarm swarm(options());
    fill(swarm);
    for (int tab = 0; tab < 16; ++tab) swarm.leave(worker_of_tab[tab]);
    const std::uint64_t before = swarm.bytes_downloaded();
    for (int tab = 0; tab < 16; ++tab) join(swarm, tab);
    swarm.run_for(60s);
    EXPECT_EQ(swarm.core().coverage().replicas_min, 2u);
    // All workers return within a moment, so hardly any unit moves.
    EXPECT_LE(swarm.bytes_downloaded() - before, before / 10);
}

TEST_F(ReturningWorkersTest, SoleUnitIsReplacedWithinThreeSeconds) {
    SimOptions alone = options();
    alone.swarm.replicas = 1;
    SimSwarm swarm(alone);
    fill(swarm);
    swarm.leave(worker_of_tab[5]);
    EXPECT_EQ(swarm.core().coverage().replicas_min, 0u);
    swarm.run_for(3s);
    EXPECT_EQ(swarm.core().coverage().replicas_min, 1u);
}

// The units that were lost take twelve seconds to download, shared equally among the workers that
// stay, while a round waits at most ten seconds. The units of the waiting round must therefore be
// loaded before second copies, and before units of later layers. This holds even if the first
// workers to leave were the last holders of units of later layers only.
TEST_F(ReturningWorkersTest, RoundsSurviveTheLossOfHalfTheWorkers) {
    SimOptions slow = options();
    slow.blob_bytes = 2'500'000;
    SimSwarm swarm(slow);
    for (int i = 0; i < 16; ++i)
        swarm.join_as({.down_bytes_per_s = slow.blob_bytes}, text("10.", i, ".0.1"));
    ASSERT_TRUE(swarm.run_until_ready(1h));

    const std::vector<WorkerId> workers = swarm.workers_alive();
    for (std::size_t i = 0; i < workers.size(); i += 2) swarm.leave(workers[i]);
    ASSERT_GT(std::ranges::count(swarm.core().replicas(), 0), 8 * 8);
    for (std::uint32_t layer = 0; layer < slow.num_layers; ++layer) {
        const RoundId round = swarm.submit({.layer = layer, .num_tokens = 8});
        EXPECT_TRUE(swarm.run_until_answered(round)) << "layer " << layer;
    }
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

// The worker announced that it would report its cached units, but sends no report. The hub waits
// only a moment for it.
TEST_F(ReturningWorkersTest, WorkerThatReportsNoCacheIsPlaced) {
    SimOptions mute = options();
    mute.reports_held = false;
    mute.num_workers = 1;
    SimSwarm swarm(mute);
    swarm.run_for(1s);
    EXPECT_GT(swarm.core().workers().front().units_assigned, 0u);

    const WorkerId late = swarm.connect(false, "10.9.0.1");
    Hello hello;
    hello.token = "sim-token";
    hello.device.budget_bytes = 72'000;
    hello.caps = {"group", "held"};
    swarm.say(late, encode_hello(hello));
    swarm.run_for(100ms);
    EXPECT_EQ(swarm.core().worker(late)->units_assigned, 0u);
    swarm.run_for(200ms);
    EXPECT_GT(swarm.core().worker(late)->units_assigned, 0u);
}

}  // namespace
}  // namespace moex::sim
