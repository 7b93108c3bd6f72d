// Tests which workers a hub that computes experts itself asks, and how often it measures the rest.
#include "hub/dispatch/round/reserve_rule.h"

#include <gtest/gtest.h>

#include <vector>

namespace moex {
namespace {

// A hub that takes 1 ms for up to 4 pairs and 16 ms for 64 pairs, and one worker.
struct Pair {
    ReserveRule rule;
    WorkerWorth worker;
    TimePoint now{1s};
    std::uint32_t probes_sent = 0;

    Pair() {
        for (int i = 0; i < 8; ++i) {
            rule.hub_took(4, 1ms, now);
            rule.hub_took(64, 16ms, now);
        }
    }
    Worth judge(std::uint32_t pairs, Duration queued = {}) {
        return rule.judge(worker, pairs, queued, *rule.hub_time(pairs), now);
    }
    // Lets rounds of `pairs` pairs follow each other for `length`, a millisecond apart. A probe is
    // answered after `took`, of which the worker computes `work`.
    void rounds(Duration length, std::uint32_t pairs, Duration took, Duration work) {
        std::optional<TimePoint> answer_at;
        for (const TimePoint end = now + length; now < end; now += 1ms) {
            if (answer_at && *answer_at <= now) {
                rule.probe_answered(worker, work, now);
                answer_at.reset();
            }
            judge(pairs);
            if (!rule.may_probe(worker, pairs, now)) continue;
            rule.probe_sent(worker, ++probes_sent, pairs, now);
            answer_at = now + took;
        }
    }
};

TEST(PairTimesTest, ClassesArePowersOfTwo) {
    EXPECT_EQ(PairTimes::class_of(1), 0u);
    EXPECT_EQ(PairTimes::class_of(2), 1u);
    EXPECT_EQ(PairTimes::class_of(3), 2u);
    EXPECT_EQ(PairTimes::class_of(4), 2u);
    EXPECT_EQ(PairTimes::class_of(5), 3u);
    EXPECT_EQ(PairTimes::class_of(64), 6u);
    EXPECT_EQ(PairTimes::class_of(65), 7u);
    EXPECT_EQ(PairTimes::class_of(1u << 30), PairTimes::num_classes - 1);
}

TEST(PairTimesTest, NeighboursBoundUnmeasuredNumbers) {
    PairTimes times;
    EXPECT_FALSE(times.at_most(8).has_value());
    EXPECT_EQ(times.at_least(8), Duration{});

    times.record(4, 2ms, TimePoint{});
    times.record(64, 8ms, TimePoint{});
    EXPECT_EQ(*times.at_most(1), 2ms) << "no longer than four pairs";
    EXPECT_EQ(*times.at_most(8), 4ms) << "no longer than twice four pairs";
    EXPECT_EQ(*times.at_most(16), 8ms) << "no longer than 64 pairs";
    EXPECT_EQ(*times.at_most(256), 32ms);
    EXPECT_EQ(times.at_least(256), 8ms);
    EXPECT_EQ(times.at_least(8), 2ms);
    EXPECT_EQ(times.at_least(1), Duration{});
}

TEST(PairTimesTest, ExpectedTimeGrowsWithTheRootOfThePairs) {
    PairTimes times;
    EXPECT_FALSE(times.expected(8).has_value());
    times.record(4, 2ms, TimePoint{});
    EXPECT_EQ(*times.expected(4), 2ms);
    EXPECT_EQ(*times.expected(16), 4ms);
    EXPECT_EQ(*times.expected(1), 2ms);
    times.record(64, 3ms, TimePoint{});
    EXPECT_EQ(*times.expected(16), 3ms) << "no longer than 64 pairs";
}

TEST(PairTimesTest, OneStalledCallMovesTheMeanLittle) {
    PairTimes times;
    for (int i = 0; i < 20; ++i) times.record(4, 1ms, TimePoint{});
    times.record(4, 10s, TimePoint{});
    EXPECT_LT(*times.at_most(4), 2ms);
}

TEST(ReserveRuleTest, UnmeasuredWorkerIsNotAsked) {
    Pair pair;
    EXPECT_EQ(pair.judge(4), Worth::unknown);
    EXPECT_FALSE(pair.worker.in_reserve());
}

TEST(ReserveRuleTest, WorkerIsAskedForManyPairsAndNotForFew) {
    Pair pair;
    pair.worker.record(4, 5ms, 1ms, pair.now);
    pair.worker.record(64, 6ms, 1ms, pair.now);
    EXPECT_EQ(pair.judge(4), Worth::slower);
    EXPECT_EQ(pair.judge(64), Worth::faster);
    EXPECT_TRUE(pair.worker.in_reserve());
    EXPECT_EQ(pair.judge(32), Worth::faster) << "at most the time of 64 pairs";
}

TEST(ReserveRuleTest, EqualTimesKeepTheVerdict) {
    Pair pair;
    pair.worker.record(4, 950us, {}, pair.now);
    EXPECT_EQ(pair.judge(4), Worth::slower) << "not clearly faster";
    Pair fast;
    fast.worker.record(4, 100us, {}, fast.now);
    EXPECT_EQ(fast.judge(4), Worth::faster);
    for (int i = 0; i < 100; ++i) fast.worker.record(4, 950us, {}, fast.now);
    EXPECT_EQ(fast.judge(4), Worth::faster) << "still faster";
    for (int i = 0; i < 100; ++i) fast.worker.record(4, 1050us, {}, fast.now);
    EXPECT_EQ(fast.judge(4), Worth::slower);
}

// Where a layer takes tens of microseconds, the hub's own work for a frame decides.
TEST(ReserveRuleTest, WorkOfAskingCountsAgainstTheWorker) {
    Pair pair;
    for (int i = 0; i < 8; ++i) pair.rule.hub_took(1, 80us, pair.now);
    for (int i = 0; i < 8; ++i) pair.worker.record(1, 45us, 20us, pair.now);
    EXPECT_EQ(pair.judge(1), Worth::slower) << "45 us and 40 us of asking";
    for (int i = 0; i < 8; ++i) pair.worker.record(1, 20us, 10us, pair.now);
    EXPECT_EQ(pair.judge(1), Worth::faster);
}

TEST(ReserveRuleTest, QueueDelaysOneCallAndKeepsTheVerdict) {
    Pair pair;
    pair.worker.record(4, 500us, {}, pair.now);
    EXPECT_EQ(pair.judge(4, 600us), Worth::slower);
    EXPECT_EQ(pair.worker.verdict(4), Worth::faster);
    EXPECT_EQ(pair.judge(4), Worth::faster);
}

TEST(ReserveRuleTest, ProbesBecomeRarerWhileTheVerdictRemains) {
    Pair pair;
    pair.rounds(10s, 4, 5ms, 1ms);
    const std::uint32_t first = pair.probes_sent;
    EXPECT_GE(first, 3u);
    EXPECT_LE(first, 6u);
    pair.rounds(300s, 4, 5ms, 1ms);
    EXPECT_LE(pair.probes_sent - first, 300u / 30 + 2);
    EXPECT_GE(pair.probes_sent - first, 300u / 30 - 2);
    EXPECT_TRUE(pair.worker.in_reserve());
}

TEST(ReserveRuleTest, ProbesTakeOneHundredthOfTheWorkersTime) {
    ReserveOptions options;
    options.probe_gap_max = 1ms;  // no other limit but the rate
    Pair pair;
    pair.rule = ReserveRule(options);
    for (int i = 0; i < 8; ++i) pair.rule.hub_took(4, 1ms, pair.now);
    pair.rounds(1000s, 4, 300ms, 100ms);
    EXPECT_LE(pair.probes_sent, 1000u / 10 + 1);
    EXPECT_GE(pair.probes_sent, 1000u / 10 - 5);
}

TEST(ReserveRuleTest, ProbesTakeOneHundredthOfTheHubsTime) {
    ReserveOptions options;
    options.probe_gap_max = 1ms;
    Pair pair;
    pair.rule = ReserveRule(options);
    for (int i = 0; i < 8; ++i) pair.rule.hub_took(1024, 200ms, pair.now);
    pair.rounds(1000s, 1024, 250ms, 1ms);
    EXPECT_LE(pair.probes_sent, 1000u / 20 + 2) << "a check of the answer takes 200 ms";
    EXPECT_GE(pair.probes_sent, 1000u / 20 - 5);
}

TEST(ReserveRuleTest, FirstProbesOfManyWorkersDoNotWait) {
    Pair pair;
    for (int i = 0; i < 30; ++i) pair.rule.hub_took(4, 500ms, pair.now);
    std::vector<WorkerWorth> crowd(64);
    for (WorkerWorth& worker : crowd) {
        EXPECT_TRUE(pair.rule.may_probe(worker, 4, pair.now));
        pair.rule.probe_sent(worker, 1, 4, pair.now);
    }
}

TEST(ReserveRuleTest, NoMoreThanTwoProbesASecond) {
    ReserveOptions options;
    options.probe_gap_min = options.probe_gap_max = 1ms;
    Pair pair;
    pair.rule = ReserveRule(options);
    for (int i = 0; i < 8; ++i) pair.rule.hub_took(4, 10us, pair.now);
    pair.rounds(100s, 4, 2ms, 20us);
    EXPECT_LE(pair.probes_sent, 202u);
    EXPECT_GE(pair.probes_sent, 190u);
}

TEST(ReserveRuleTest, FasterWorkerReturnsAfterItsNextProbes) {
    Pair pair;
    for (int i = 0; i < 50; ++i) pair.rule.hub_took(4, 10ms, pair.now);
    pair.rounds(60s, 4, 50ms, 1ms);
    EXPECT_EQ(pair.judge(4), Worth::slower);
    const std::uint32_t before = pair.probes_sent;
    pair.rounds(35s, 4, 2ms, 1ms);
    EXPECT_EQ(pair.judge(4), Worth::faster);
    EXPECT_LE(pair.probes_sent - before, 5u) << "a surprise is looked at again soon";
}

TEST(ReserveRuleTest, SlowerHubAsksAtOnce) {
    Pair pair;
    pair.rounds(60s, 4, 5ms, 1ms);
    for (int i = 0; i < 30; ++i) pair.rule.hub_took(4, 20ms, pair.now);
    EXPECT_EQ(pair.judge(4), Worth::faster);
}

TEST(ReserveRuleTest, LostProbeCountsAsALongTime) {
    Pair pair;
    ASSERT_TRUE(pair.rule.may_probe(pair.worker, 4, pair.now));
    pair.rule.probe_sent(pair.worker, 1, 4, pair.now);
    EXPECT_TRUE(pair.worker.is_probe(1));
    pair.now += 9s;
    EXPECT_FALSE(pair.rule.may_probe(pair.worker, 4, pair.now)) << "one probe at a time";
    pair.now += 2s;
    EXPECT_FALSE(pair.rule.may_probe(pair.worker, 4, pair.now)) << "a pause after the lost probe";
    EXPECT_EQ(pair.judge(4), Worth::slower);
}

TEST(ReserveRuleTest, HubIsMeasuredNowAndThen) {
    ReserveRule rule;
    TimePoint now{1s};
    EXPECT_TRUE(rule.measure_hub(4, now)) << "unknown";
    EXPECT_FALSE(rule.measure_hub(4, now));
    rule.hub_took(4, 100ms, now);
    std::uint32_t measured = 0;
    for (const TimePoint end = now + 100s; now < end; now += 10ms)
        if (rule.measure_hub(4, now)) {
            rule.hub_took(4, 100ms, now);
            ++measured;
        }
    EXPECT_GE(measured, 4u);
    EXPECT_LE(measured, 6u) << "twice 100 ms are one hundredth of 20 s";
}

}  // namespace
}  // namespace moex
