// Tests workers that do not load their assigned units: the units must become available at other
// workers.
#include <gtest/gtest.h>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

// A swarm of two workers, each with memory for all 48 units; one copy of each unit is wanted.
struct StuckUnitsTest : testing::Test {
    StuckUnitsTest() : swarm(options()) {
        good = swarm.join(Peer::ours, "10.0.0.1");
        EXPECT_TRUE(swarm.run_until_ready());
    }
    static SimOptions options() {
        SimOptions options{.num_workers = 0, .seed = 5, .log = true};
        options.swarm.replicas = 1;
        options.swarm.local_fallback = false;
        return options;
    }
    std::uint32_t assigned(WorkerId worker) const {
        return swarm.core().worker(worker)->units_assigned;
    }
    void expect_all_answered() {
        for (std::uint32_t layer = 0; layer < 3; ++layer) {
            const RoundId round = swarm.submit({.layer = layer, .num_tokens = 8});
            ASSERT_TRUE(swarm.run_until_idle());
            ASSERT_TRUE(swarm.outcome(round).answer->ok())
                << swarm.outcome(round).answer->error().message;
        }
        EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
    }
    mutable SimSwarm swarm;
    WorkerId good = 0;
};

// In an earlier version half of the units had no holder for as long as the stuck worker echoed
// heartbeats.
TEST_F(StuckUnitsTest, WorkerWithoutReadyLosesItsUnits) {
    const WorkerId stuck = swarm.join(Peer::ours, "10.0.1.1");
    swarm.stall_loading(stuck);
    swarm.run_for(1s);
    EXPECT_EQ(assigned(stuck), 24u);
    swarm.leave(good);

    good = swarm.join(Peer::ours, "10.0.2.1");
    swarm.run_for(40s);
    EXPECT_EQ(assigned(stuck), 0u);
    EXPECT_EQ(swarm.core().coverage().replicas_min, 1u);
    expect_all_answered();

    // The stuck worker recovers and gets its share of units. Meanwhile the other worker answers all
    // rounds.
    swarm.stall_loading(stuck, false);
    for (int i = 0; i < 70; ++i) {
        swarm.run_for(1s);
        EXPECT_EQ(swarm.core().coverage().replicas_min, 1u);
    }
    EXPECT_EQ(assigned(stuck), 24u);
    expect_all_answered();
}

TEST_F(StuckUnitsTest, NoSpaceMovesUnloadedUnitsToOthersAtOnce) {
    const WorkerId full = swarm.join(Peer::ours, "10.0.1.1");
    swarm.stall_loading(full);
    swarm.run_for(1s);
    swarm.leave(good);
    good = swarm.join(Peer::ours, "10.0.2.1");
    swarm.run_for(1s);
    ASSERT_EQ(swarm.core().coverage().replicas_min, 0u);

    swarm.say(full, encode_error({.sequence_id = no_sequence_id, .code = "no_space"}));
    swarm.run_for(1s);
    EXPECT_EQ(assigned(full), 0u);
    expect_all_answered();
}

// In an earlier version, after sixteen errors of a worker that had lost its units, the units were
// assigned to no other worker.
TEST_F(StuckUnitsTest, UnitsThatAWorkerStillLacksGoToOthers) {
    const WorkerId broken = swarm.join(Peer::ours, "10.0.1.1");
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.answer_error(broken, "unknown_expert");
    swarm.stall_loading(broken);

    for (int i = 0; i < 30; ++i) {
        swarm.submit({.layer = static_cast<std::uint32_t>(i % 3), .num_tokens = 8});
        swarm.run_for(3s);
    }
    swarm.run_until_idle();
    EXPECT_EQ(assigned(broken), 0u);
    expect_all_answered();
}

}  // namespace
}  // namespace moex::sim
