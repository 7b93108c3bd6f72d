#include <gtest/gtest.h>

#include "hub/dispatch/hedge_policy.h"
#include "hub/dispatch/worker_pool.h"

namespace moex {
namespace {

TEST(SequenceIdsTest, WrapsAndSkipsLiveIdsAndTheReservedOne) {
    SequenceIds ids(0xfffffffdu);
    EXPECT_EQ(ids.issue(1), 0xfffffffdu);
    EXPECT_EQ(ids.issue(2), 0xfffffffeu);
    EXPECT_EQ(ids.issue(3), 0u);  // 0xffffffff names no attempt
    EXPECT_EQ(ids.issue(4), 1u);
    ids.release(0);
    EXPECT_EQ(ids.find_live(0), nullptr);
    ASSERT_NE(ids.find_live(1), nullptr);
    EXPECT_EQ(*ids.find_live(1), 4u);
    EXPECT_TRUE(ids.was_issued(0xfffffffeu));
}

TEST(SequenceIdsTest, AnIdIsLiveForAMinuteAfterItsCancel) {
    SequenceIds ids(5);
    const TimePoint start{100s};
    const std::uint32_t id = ids.issue(1);
    ids.cancel(id, start, 8, start);
    EXPECT_EQ(ids.find_live(id), nullptr);
    ASSERT_NE(ids.find_cancelled(id), nullptr);
    ids.expire(start + 59s);
    EXPECT_NE(ids.find_cancelled(id), nullptr);
    ids.expire(start + 60s);
    EXPECT_EQ(ids.find_cancelled(id), nullptr);
    EXPECT_TRUE(ids.was_issued(id));
    EXPECT_FALSE(ids.was_issued(id + 1));
    EXPECT_FALSE(ids.was_issued(id - 1));
}

TEST(LatencyHistogramTest, QuantilesAreWithinAnEighth) {
    LatencyHistogram histogram;
    for (int us = 1; us <= 1000; ++us) histogram.record(std::chrono::microseconds(us * 10));
    EXPECT_NEAR(to_ms(histogram.p50()), 5.0, 5.0 / 8);
    EXPECT_NEAR(to_ms(histogram.p99()), 9.9, 9.9 / 8);
}

TEST(WorkerTest, TimeoutFollowsTheWorkersOwnLatencyWithinBounds) {
    Worker worker(1, 1);
    const SwarmOptions options{
        .timeout_min = 100ms, .timeout_max = 500ms, .software_timeout_max = 5s};
    EXPECT_EQ(worker.attempt_timeout(8, options), 500ms);  // nothing known yet
    for (int i = 0; i < 50; ++i) worker.record_latency(50ms, 8);
    EXPECT_NEAR(to_ms(worker.attempt_timeout(8, options)), 200, 30);
    // another size of group is another matter
    EXPECT_EQ(worker.attempt_timeout(600, options), 500ms);
    for (int i = 0; i < 6000; ++i) worker.record_latency(1ms, 8);  // old samples fade
    EXPECT_EQ(worker.attempt_timeout(8, options), 100ms);
    worker.device.software = true;
    EXPECT_EQ(worker.attempt_timeout(600, options), 5s);
}

TEST(HedgePolicyTest, ReadsAndWritesItsNames) {
    EXPECT_EQ(hedge_policy_text(*parse_hedge_policy("off")), "off");
    EXPECT_EQ(hedge_policy_text(*parse_hedge_policy("fixed 2")), "fixed 2");
    EXPECT_EQ(parse_hedge_policy("fixed:3")->copies, 3u);
    for (const char* wrong : {"", "on", "fixed", "fixed ", "fixed 0", "fixed 9", "fixed 2x",
                              "fixed -1", "fixed2", "Fixed 2"})
        EXPECT_FALSE(parse_hedge_policy(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace moex
