// Tests when a slow call gets a second attempt at another worker, and when it gets none.
#include "hub/dispatch/round/attempt_policy.h"

#include <gtest/gtest.h>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

AttemptPolicy policy_that_saw(int num_quick, int num_slow) {
    AttemptPolicy policy({.mode = HedgeMode::delayed});
    for (int i = 0; i < num_quick; ++i) policy.on_end(20ms, 20ms);
    for (int i = 0; i < num_slow; ++i) policy.on_end(200ms, 20ms);
    return policy;
}

TEST(AttemptPolicyTest, SecondAttemptIsSentWhenTheFirstIsUnusuallySlow) {
    EXPECT_FALSE(policy_that_saw(20, 0).second_after(20ms)) << "too little is known";
    EXPECT_NEAR(to_ms(*policy_that_saw(98, 2).second_after(20ms)), 20, 3);
    EXPECT_NEAR(to_ms(*policy_that_saw(98, 2).second_after(100ms)), 100, 13);
    EXPECT_NEAR(to_ms(*policy_that_saw(90, 10).second_after(20ms)), 200, 26);
}

TEST(AttemptPolicyTest, OtherPoliciesSendNoLaterSecondAttempt) {
    for (const char* text : {"off", "fixed 2", "adaptive"}) {
        AttemptPolicy policy = policy_that_saw(100, 0);
        policy.set(*parse_hedge_policy(text));
        EXPECT_FALSE(policy.second_after(20ms)) << text;
    }
}

TEST(AttemptPolicyTest, TheBudgetIsATwentiethOfTheFirstsAndFiveASecond) {
    AttemptPolicy policy = policy_that_saw(100, 0);
    TimePoint now{100s};
    const auto afforded = [&] {
        int num = 0;
        for (; policy.affords(now); ++num) policy.pay(1);
        return num;
    };
    EXPECT_EQ(afforded(), 10);  // at first the saved-up allowance of ten attempts
    EXPECT_EQ(afforded(), 0);
    now += 1s;
    EXPECT_EQ(afforded(), 5);
    for (int i = 0; i < 100; ++i) policy.on_first(now);
    EXPECT_NEAR(afforded(), 5, 1);
    policy.pay(20);
    now += 2s;
    EXPECT_EQ(afforded(), 0);
}

TEST(AttemptPolicyTest, AdaptiveAsksTwoWhileTheMedianIsAboveItsBound) {
    AttemptPolicy policy(*parse_hedge_policy("adaptive"));
    for (int i = 0; i < 100; ++i) policy.on_end(20ms, 20ms);
    EXPECT_EQ(policy.attempts_at_once(), 1u);
    for (int i = 0; i < 1000; ++i) policy.on_end(80ms, 20ms);
    EXPECT_EQ(policy.attempts_at_once(), 2u);
}

// The result of the usual case: one answer in a hundred arrives half a second late.
struct StallStory {
    double p99_ms = 0;
    SwarmCounters counts;
};
StallStory run_with(const char* hedge, bool deterministic = false) {
    SimOptions options{.num_workers = 0, .seed = 3, .num_experts = 32};
    options.swarm.local_fallback = false;
    options.swarm.hedge = *parse_hedge_policy(hedge);
    options.swarm.rounding.deterministic = deterministic;
    SimSwarm swarm(options);
    for (int i = 0; i < 8; ++i)
        swarm.join_as(
            {.compute = 10ms, .spread = 0.1, .stall = 0.01, .stall_min = 400ms, .stall_max = 450ms},
            text("10.0.", i, ".1"));
    EXPECT_TRUE(swarm.run_until_ready());

    std::vector<double> took_ms;
    for (int i = 0; i < 1500; ++i) {
        const TimePoint start = swarm.now();
        const RoundId round = swarm.submit({.layer = static_cast<std::uint32_t>(i % 3)});
        EXPECT_TRUE(swarm.run_until_answered(round));
        if (i >= 100) took_ms.push_back(to_ms(swarm.now() - start));
        swarm.forget(round);
    }
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
    std::sort(took_ms.begin(), took_ms.end());
    return {.p99_ms = took_ms[took_ms.size() * 99 / 100], .counts = swarm.core().counters()};
}

TEST(AttemptPolicyStory, DelayedTakesTheStallsOutOfTheTailWithinTheBudget) {
    const StallStory off = run_with("off"), delayed = run_with("delayed");
    EXPECT_GT(off.p99_ms, 100);
    EXPECT_LT(delayed.p99_ms, 60);
    EXPECT_GT(delayed.counts.hedges_won, 10u);
    EXPECT_LE(static_cast<double>(delayed.counts.hedges_sent),
              0.08 * static_cast<double>(delayed.counts.groups_sent));
    EXPECT_LT(run_with("delayed", true).p99_ms, 60);
}

// A swarm after a warm-up, in which the hub has learnt the workers' latencies. All workers are
// alike and hold all units.
struct KnownSwarm {
    KnownSwarm(std::uint32_t num_workers, int num_rounds) : swarm(options_of(num_workers)) {
        EXPECT_TRUE(swarm.run_until_ready());
        ask(num_rounds);
    }
    static SimOptions options_of(std::uint32_t num_workers) {
        SimOptions options{.num_workers = num_workers, .seed = 3};
        options.compute = 10ms;
        options.swarm.local_fallback = false;
        options.swarm.replicas = num_workers;
        options.swarm.hedge = {.mode = HedgeMode::delayed};
        return options;
    }
    void ask(int num_rounds) {
        for (int i = 0; i < num_rounds; ++i) {
            swarm.submit({.layer = static_cast<std::uint32_t>(i % 3)});
            EXPECT_TRUE(swarm.run_until_idle());
        }
    }
    SimSwarm swarm;
};

// All workers become slow at the same moment, so every attempt is overdue according to the
// latencies that the hub knows. Even then the hub must not send every call twice.
TEST(AttemptPolicyStory, SecondAttemptsEndWithTheBudgetWhenAllSlowDown) {
    KnownSwarm known(40, 4000);
    SimSwarm& swarm = known.swarm;
    for (const WorkerId id : swarm.workers_alive()) swarm.slow_down(id, 30ms);

    const SwarmCounters before = swarm.core().counters();
    const TimePoint start = swarm.now();
    for (int i = 0; i < 10; ++i) {
        for (std::uint32_t k = 0; k < 8; ++k) swarm.submit({.layer = k % 3});
        EXPECT_TRUE(swarm.run_until_idle());
    }
    const SwarmCounters after = swarm.core().counters();
    const auto hedges = static_cast<double>(after.hedges_sent - before.hedges_sent),
               first = static_cast<double>(after.groups_sent - before.groups_sent) - hedges;
    EXPECT_GE(hedges, 5);
    EXPECT_LE(hedges, 10 + 0.05 * first + 5 * to_ms(swarm.now() - start) / 1000 + 1);
}

// An overdue call is not sent to a busy worker as well, since that worker's answer would be late
// too.
TEST(AttemptPolicyStory, BusyWorkerGetsNoSecondAttempt) {
    KnownSwarm known(2, 400);
    SimSwarm& swarm = known.swarm;
    for (const WorkerId id : swarm.workers_alive()) swarm.stall_compute(id);
    const std::uint64_t before = swarm.core().counters().hedges_sent;
    swarm.submit();
    swarm.submit();
    swarm.run_for(80ms);
    for (const WorkerId id : swarm.workers_alive()) EXPECT_EQ(swarm.core().in_flight(id), 1u);
    EXPECT_EQ(swarm.core().counters().timeouts, 0u);
    EXPECT_EQ(swarm.core().counters().hedges_sent, before);

    for (const WorkerId id : swarm.workers_alive()) swarm.stall_compute(id, false);
    EXPECT_TRUE(swarm.run_until_idle());
}

TEST(AttemptPolicyStory, TheSwitchWorksWhileRoundsAreOpen) {
    SimOptions options{.num_workers = 4, .seed = 9};
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());
    const char* const policies[] = {"fixed 2", "delayed", "off", "adaptive", "fixed 3"};
    for (int i = 0; i < 100; ++i) {
        swarm.submit({.layer = static_cast<std::uint32_t>(i % 3), .num_tokens = 3});
        swarm.core().set_hedge(*parse_hedge_policy(policies[i % 5]));
        swarm.run_for(2ms);
    }
    EXPECT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.core().counters().rounds_failed, 0u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

// One of two workers is ten times slower. In an earlier version both workers got the same number of
// groups, and every round waited for the slow one.
TEST(RouterStory, TenTimesSlowerWorkerComputesAlmostNothing) {
    SimOptions options{.num_workers = 0, .seed = 5};
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const WorkerId slow = swarm.join_as({.compute = 100ms, .spread = 0.1}, "10.0.0.1");
    swarm.join_as({.compute = 10ms, .spread = 0.1}, "10.0.1.1");
    ASSERT_TRUE(swarm.run_until_ready());
    for (const std::uint32_t num_tokens : {1u, 64u}) {
        for (int i = 0; i < 40; ++i) {
            swarm.submit({.num_tokens = num_tokens});
            ASSERT_TRUE(swarm.run_until_idle());
        }
        const std::uint64_t before = swarm.core().worker(slow)->pairs_answered;
        for (int i = 0; i < 200; ++i) {
            swarm.submit({.num_tokens = num_tokens});
            ASSERT_TRUE(swarm.run_until_idle());
        }
        EXPECT_LE(swarm.core().worker(slow)->pairs_answered - before, 200 * 4 * num_tokens / 50);
    }
}

}  // namespace
}  // namespace moex::sim
