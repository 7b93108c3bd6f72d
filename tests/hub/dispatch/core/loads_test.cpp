// Tests workers that load experts on demand. The time of a load does not count as a stall, and a
// worker with the expert in memory is preferred to a worker that has to load it.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "hub/dispatch/core/slot_guess.h"
#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

TEST(SlotGuessTest, GuessHoldsRecentExpertsOrAllWithoutSlots) {
    SlotGuess guess;
    guess.use(1);
    EXPECT_TRUE(guess.holds(1));
    EXPECT_TRUE(guess.holds(2));

    guess.set_slots(2);
    EXPECT_FALSE(guess.holds(1)) << "nothing is known of what was before";
    for (const std::uint32_t unit : {1, 2, 1, 3}) guess.use(unit);
    EXPECT_TRUE(guess.holds(1));
    EXPECT_FALSE(guess.holds(2));
    EXPECT_TRUE(guess.holds(3));
    guess.set_slots(1);
    EXPECT_FALSE(guess.holds(1));
    EXPECT_TRUE(guess.holds(3));
}

SimOptions options_of(HedgeMode hedge) {
    SimOptions options{.num_workers = 0, .seed = 5, .num_layers = 4};
    options.swarm.local_fallback = false;
    options.swarm.checks.on = false;
    options.swarm.hedge.mode = hedge;
    return options;
}

// Submits a round with the experts `first` to `first + 3` of a layer.
RoundId ask(SimSwarm& swarm, std::uint32_t layer, std::uint16_t first) {
    const auto at = [&](int i) { return static_cast<std::uint16_t>(first + i); };
    const RoundId round = swarm.submit(
        {.layer = layer, .expert_ids = {at(0), at(1), at(2), at(3)}});
    EXPECT_TRUE(swarm.run_until_answered(round));
    EXPECT_FALSE(swarm.outcome(round).wrong);
    return round;
}

void tell(SimSwarm& swarm, WorkerId worker, std::uint32_t slots, Duration load) {
    swarm.say(worker,
              encode_slots(
                  {.slots = slots, .loads = 1, .load_us = static_cast<std::uint64_t>(load / 1us)}));
}

// The worker answers in about 8 ms if the experts are in its memory, and 180 ms later if it has to
// load them. The longer time exceeds the usual timeout of the worker, which is at least 100 ms.
TEST(SwarmLoadsTest, ALoadIsNeitherATimeoutNorAFailure) {
    SimSwarm swarm(options_of(HedgeMode::off));
    const WorkerId worker = swarm.join_as({.slots = 8, .load = 45ms}, "10.0.0.1");
    ASSERT_TRUE(swarm.run_until_ready());
    ask(swarm, 0, 0);
    for (int i = 0; i < 20; ++i) ask(swarm, 0, 0);
    tell(swarm, worker, 8, 180ms);

    const SwarmCounters before = swarm.core().counters();
    for (int i = 0; i < 12; ++i) ask(swarm, 1 + i % 3, 0);
    const SwarmCounters after = swarm.core().counters();
    EXPECT_EQ(after.timeouts, before.timeouts);
    EXPECT_EQ(after.redispatched, before.redispatched);
    EXPECT_EQ(swarm.core().workers()[0].health, Health::healthy);
    EXPECT_GT(swarm.experts_missed(worker), 40u) << "each of these rounds waited for loads";
}

// Two workers hold all units and have memory for half of them each. Once the hub knows which worker
// has loaded which units, each worker keeps one half in memory.
TEST(SwarmLoadsTest, WorkerWithTheExpertInMemoryIsPreferred) {
    SimSwarm swarm(options_of(HedgeMode::off));
    const WorkerProfile profile{.slots = 32, .load = 5ms};
    const WorkerId workers[] = {swarm.join_as(profile, "10.0.0.1"),
                                swarm.join_as(profile, "10.1.0.1")};
    ASSERT_TRUE(swarm.run_until_ready());
    for (const WorkerId worker : workers) tell(swarm, worker, 32, 20ms);

    const auto missed = [&] {
        return swarm.experts_missed(workers[0]) + swarm.experts_missed(workers[1]);
    };
    std::mt19937 random(3);
    // quarters of layers; one round requests the experts of one quarter
    std::vector<std::uint32_t> quarters(16);
    std::iota(quarters.begin(), quarters.end(), 0);
    const auto all_once = [&] {
        std::shuffle(quarters.begin(), quarters.end(), random);
        for (const std::uint32_t quarter : quarters)
            ask(swarm, quarter / 4, static_cast<std::uint16_t>(quarter % 4 * 4));
    };
    for (int turn = 0; turn < 4; ++turn) all_once();
    const std::uint64_t before = missed();
    for (int turn = 0; turn < 8; ++turn) all_once();
    EXPECT_LE(missed() - before, 8u * 64 / 8) << "of 512 experts asked";
}

// The worker with the expert in memory is busy, so the call is sent to the other worker, which has
// to load the expert. A second attempt is sent before that load ends.
TEST(SwarmLoadsTest, LoadingCallIsHedgedAtAWorkerWithTheExpert) {
    SimSwarm swarm(options_of(HedgeMode::delayed));
    const WorkerId ready = swarm.join_as({}, "10.0.0.1");
    ASSERT_TRUE(swarm.run_until_ready());
    for (int i = 0; i < 100; ++i) ask(swarm, 0, 0);
    const WorkerId loads = swarm.join_as({.slots = 4, .load = 100ms}, "10.1.0.1");
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.run_for(2s);
    tell(swarm, loads, 4, 400ms);

    // Two simultaneous rounds fill the queue of the worker with the experts in memory, so only the
    // other worker can take the third round.
    std::vector<RoundId> rounds;
    const SwarmCounters before = swarm.core().counters();
    for (std::uint32_t layer = 0; layer < 3; ++layer)
        rounds.push_back(swarm.submit({.layer = layer, .expert_ids = {8, 9, 10, 11}}));
    for (const RoundId round : rounds) {
        ASSERT_TRUE(swarm.run_until_answered(round));
        const RoundOutcome& outcome = swarm.outcome(round);
        EXPECT_LT(outcome.done_at - outcome.asked_at, 300ms);
    }
    EXPECT_GE(swarm.core().counters().hedges_won, before.hedges_won + 1);
    EXPECT_EQ(swarm.core().counters().timeouts, before.timeouts);
    (void)ready;
}

// However long a worker claims that its loads take, a call that it never answers is sent to another
// worker within the longest timeout plus two seconds.
TEST(SwarmLoadsTest, ALieAboutLoadsCostsTwoSecondsAtMost) {
    SimOptions options = options_of(HedgeMode::off);
    SimSwarm swarm(options);
    const WorkerId liar = swarm.join_as({}, "10.0.0.1");
    swarm.join_as({}, "10.1.0.1");
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.say(liar, encode_slots({.slots = 1, .loads = 1, .load_us = slot_counter_max}));
    swarm.stall_compute(liar);

    for (std::uint32_t layer = 0; layer < 4; ++layer) {
        const RoundId round = ask(swarm, layer, 0);
        const RoundOutcome& outcome = swarm.outcome(round);
        EXPECT_LT(outcome.done_at - outcome.asked_at,
                  options.swarm.timeout_max + Duration(2s) + Duration(100ms));
    }
}

}  // namespace
}  // namespace moex::sim
