// Tests the count of copies by which hubs of a fleet decide which worker another hub may have.
#include <gtest/gtest.h>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

// 48 units. Every worker has memory for all of them, and there is no local backend.
SimOptions with_copies(std::uint32_t replicas) {
    SimOptions options{.num_workers = 0, .seed = 5};
    options.swarm.local_fallback = false;
    options.swarm.replicas = replicas;
    return options;
}

TEST(UnitCopiesTest, SingleCopiesLeaveWithTheirWorker) {
    SimSwarm swarm(with_copies(1));
    EXPECT_EQ(swarm.core().copies().missing, 48u) << "there is no worker";
    for (int i = 0; i < 3; ++i) swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.run_for(30s);

    const UnitCopies all = swarm.core().copies();
    EXPECT_EQ(all.units, 48u);
    EXPECT_EQ(all.missing + all.thin, 0u);
    EXPECT_EQ(all.room, 3 * 48u - 48u);
    ASSERT_EQ(all.shares.size(), 3u);
    for (const auto& [id, share] : all.shares) {
        const std::uint32_t units = swarm.core().worker(id)->units_ready;
        EXPECT_EQ(share.alone, units);
        EXPECT_EQ(share.thinned, 0u);
        EXPECT_EQ(share.room, 48 - units);
        EXPECT_FALSE(share.is_loading);
        const UnitCopies without = swarm.core().copies({id});
        EXPECT_EQ(without.missing, units);
        EXPECT_EQ(without.shares.size(), 2u);
    }
}

TEST(UnitCopiesTest, AMissingSecondCopyIsThinWhereNoWorkerHasMemory) {
    SimSwarm swarm(with_copies(2));
    const WorkerId one = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    EXPECT_EQ(swarm.core().copies().thin, 48u);
    EXPECT_EQ(swarm.core().copies().shares.at(one).alone, 48u);

    const WorkerId two = swarm.join();
    swarm.run_for(1s);
    EXPECT_EQ(swarm.core().copies().thin, 0u) << "it has memory for them";
    swarm.run_for(60s);
    const UnitCopies both = swarm.core().copies();
    EXPECT_EQ(both.missing + both.thin + both.room, 0u);
    EXPECT_EQ(both.shares.at(one).alone, 0u);
    EXPECT_EQ(both.shares.at(one).thinned, 48u);
    EXPECT_EQ(swarm.core().copies({two}).thin, 48u);

    // A worker whose operator drains it does not stay.
    ASSERT_TRUE(swarm.order(two, WorkerOrder::drain).ok());
    EXPECT_EQ(swarm.core().copies().thin, 48u);
    EXPECT_FALSE(swarm.core().copies().shares.contains(two));
}

// With more workers than copies, one that leaves makes nothing thin: the others have memory.
TEST(UnitCopiesTest, RoomTakesTheCopiesOfAWorkerThatLeaves) {
    SimSwarm swarm(with_copies(2));
    std::vector<WorkerId> workers;
    for (int i = 0; i < 4; ++i) workers.push_back(swarm.join());
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.run_for(60s);
    EXPECT_EQ(swarm.core().copies().room, 4 * 48u - 2 * 48u);
    const UnitCopies without = swarm.core().copies({workers[0]});
    EXPECT_EQ(without.missing + without.thin, 0u);
    EXPECT_EQ(without.room, 3 * 48u - 2 * 48u);
}

}  // namespace
}  // namespace moex::sim
