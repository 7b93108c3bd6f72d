// Tests the power setting: a worker names the share of its capacity that it offers, and gets
// correspondingly fewer calls. Calls for units without another holder are sent to the worker at
// once all the same.
#include <gtest/gtest.h>

#include "hub/dispatch/core/worker_pool.h"
#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

struct Asked {
    // number of groups sent to each worker, in the order in which the workers joined
    std::vector<std::uint64_t> groups;
    Duration slowest{};
    std::uint64_t local = 0;
};

// Runs `rounds` rounds of one token, one after the other. `workers` gives the memory budget (in
// experts) and the power (in per cent) of each worker; power 0 means that the worker reports no
// power.
Asked ask(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& workers,
          std::uint32_t replicas, int rounds = 600) {
    SimOptions options{.num_workers = 0, .seed = 11};
    options.swarm.replicas = replicas;
    options.swarm.checks.on = false;
    SimSwarm swarm(options);
    std::vector<WorkerId> ids;
    for (const auto& [budget, percent] : workers) {
        ids.push_back(swarm.join_as({.budget_experts = budget}, "10.0.0.1"));
        if (percent > 0) swarm.say(ids.back(), encode_power(percent));
    }
    EXPECT_TRUE(swarm.run_until_ready());

    Asked asked;
    for (int i = 0; i < rounds; ++i) {
        const RoundId round = swarm.submit({.layer = static_cast<std::uint32_t>(i % 3)});
        EXPECT_TRUE(swarm.run_until_answered(round));
        const RoundOutcome& outcome = swarm.outcome(round);
        EXPECT_FALSE(outcome.wrong);
        asked.slowest = std::max(asked.slowest, outcome.done_at - outcome.asked_at);
        swarm.forget(round);
    }
    EXPECT_TRUE(swarm.violations().empty());
    for (const WorkerId id : ids)
        for (const WorkerView& view : swarm.core().workers())
            if (view.id == id) asked.groups.push_back(view.groups_sent);
    asked.local = swarm.core().counters().calls_local;
    return asked;
}

double share(std::uint64_t part, std::uint64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
}

TEST(PowerTest, ReducedPowerReducesTheShareAmongEquals) {
    const Asked all = ask({{1000, 0}, {1000, 100}, {1000, 100}}, 3);
    EXPECT_NEAR(share(all.groups[0], all.groups[1]), 1, 0.2);
    for (const std::uint32_t percent : {50u, 25u, 10u}) {
        const Asked some = ask({{1000, percent}, {1000, 100}, {1000, 100}}, 3);
        EXPECT_NEAR(share(some.groups[0], some.groups[1]), percent / 100.0, 0.1) << percent;
    }
}

// The power gives a share of the router's passes, because a worker that alone holds all units of a
// round would otherwise be chosen every time, however much work it has done already.
TEST(PowerTest, PowerGivesAFixedShareOfEvents) {
    for (const WorkerId id : {WorkerId{1}, WorkerId{2}, WorkerId{77}})
        for (const double power : {1.0, 0.7, 0.3, 0.1}) {
            Worker worker(id, 1), again(id, 1);
            worker.power = again.power = power;
            int taken = 0;
            for (std::uint64_t turn = 1; turn <= 10'000; ++turn) {
                taken += worker.is_preferred_in(turn);
                ASSERT_EQ(worker.is_preferred_in(turn), again.is_preferred_in(turn));
            }
            EXPECT_NEAR(taken, 10'000 * power, 200) << id;
        }
}

TEST(PowerTest, SoleHolderIsUsedAtOnceDespiteItsPower) {
    const Asked whole = ask({{1000, 100}}, 1), tenth = ask({{1000, 10}}, 1);
    EXPECT_EQ(tenth.groups, whole.groups);
    EXPECT_EQ(tenth.slowest, whole.slowest) << "no answer waits for a turn";
    EXPECT_EQ(tenth.local, 0u);
}

TEST(PowerTest, InvalidPowerEndsTheConnection) {
    SimSwarm swarm({.num_workers = 2, .seed = 3});
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId bad = swarm.workers_alive().front();
    swarm.say(bad, encode_power(9));
    EXPECT_EQ(swarm.closed_with(bad), CloseCode::protocol_error);
    EXPECT_EQ(swarm.core().counters().bad_frames, 1u);
}

}  // namespace
}  // namespace moex::sim
