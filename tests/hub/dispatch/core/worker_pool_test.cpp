#include <gtest/gtest.h>

#include "hub/dispatch/core/worker_pool.h"
#include "hub/dispatch/round/answer_memory.h"
#include "hub/dispatch/round/hedge_policy.h"

namespace moex {
namespace {

TEST(SequenceIdsTest, WrapsAndSkipsLiveIdsAndTheReservedOne) {
    SequenceIds ids(0xfffffffdu);
    EXPECT_EQ(ids.issue(1), 0xfffffffdu);
    EXPECT_EQ(ids.issue(2), 0xfffffffeu);
    EXPECT_EQ(ids.issue(3), 0u);  // the id 0xffffffff is reserved and skipped
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

TEST(SequenceIdsTest, LongestAnswerCoversAllIdsStillAnswerable) {
    SequenceIds ids(1);
    const TimePoint start{100s};
    EXPECT_EQ(ids.answer_bytes_max(), 0u);

    const std::uint32_t small = ids.issue(1, 1000), large = ids.issue(2, 1'000'000),
                        late = ids.issue(3, 500'000);
    const auto within_a_quarter = [&](std::uint64_t bytes) {
        return ids.answer_bytes_max() >= bytes && ids.answer_bytes_max() <= bytes * 5 / 4;
    };
    EXPECT_TRUE(within_a_quarter(1'000'000)) << ids.answer_bytes_max();

    ids.release(large);
    EXPECT_TRUE(within_a_quarter(500'000)) << ids.answer_bytes_max();
    ids.cancel(late, start, 8, start);
    ids.expire(start + 59s);
    EXPECT_TRUE(within_a_quarter(500'000)) << ids.answer_bytes_max();

    ids.expire(start + 60s);
    EXPECT_TRUE(within_a_quarter(1000)) << ids.answer_bytes_max();
    ids.cancel(small, start, 8, start);
    ids.release_cancelled(small);
    EXPECT_EQ(ids.answer_bytes_max(), 0u);
}

TEST(AnswerMemoryTest, LastReturnedBufferIsReusedWithinTheBound) {
    AnswerMemory memory;
    EXPECT_EQ(memory.take().capacity(), 0u);
    memory.give({});
    memory.give(std::vector<float>(100));
    memory.give(std::vector<float>(200));
    EXPECT_EQ(memory.bytes(), 300 * sizeof(float));
    EXPECT_EQ(memory.take().capacity(), 200u);
    EXPECT_EQ(memory.take().capacity(), 100u);
    EXPECT_EQ(memory.take().capacity(), 0u);

    constexpr std::size_t third = AnswerMemory::bytes_max / sizeof(float) / 3;
    for (int i = 0; i < 5; ++i) memory.give(std::vector<float>(third));
    EXPECT_EQ(memory.bytes(), 3 * third * sizeof(float));
}

TEST(SizeCountsTest, NoSizeIsAboveWhatItSays) {
    for (std::uint64_t bytes = 1; bytes < (1ull << 27); bytes = bytes * 9 / 8 + 1) {
        SizeCounts sizes;
        sizes.add(bytes);
        EXPECT_GE(sizes.max(), bytes);
        EXPECT_LE(sizes.max(), bytes * 5 / 4 + 4);
        sizes.remove(bytes);
        EXPECT_EQ(sizes.max(), 0u);
    }
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
    // the longest timeout, since there are no samples yet
    EXPECT_EQ(worker.attempt_timeout(8, options), 500ms);

    for (int i = 0; i < 50; ++i) worker.record_latency(50ms, 8);
    EXPECT_NEAR(to_ms(worker.attempt_timeout(8, options)), 200, 30);
    // Groups of another size have their own latency, for which there are no samples.
    EXPECT_EQ(worker.attempt_timeout(600, options), 500ms);

    for (int i = 0; i < 6000; ++i) worker.record_latency(1ms, 8);  // outweigh those of 50 ms
    EXPECT_EQ(worker.attempt_timeout(8, options), 100ms);
    worker.device.software = true;
    EXPECT_EQ(worker.attempt_timeout(600, options), 5s);
}

TEST(WorkerTest, OldEstimatesLoseWeight) {
    Worker worker(1, 1);
    LatencyEstimates swarm;
    for (int i = 0; i < 20; ++i) {
        worker.record_latency(100ms, 8, TimePoint{1s});
        swarm[size_class_of(8)].record(10ms, TimePoint{1s});
    }
    EXPECT_NEAR(to_ms(worker.predicted(8, swarm, TimePoint{1s})), 100, 1);
    EXPECT_NEAR(to_ms(worker.predicted(8, swarm, TimePoint{31s})), 55, 1);
    EXPECT_NEAR(to_ms(worker.predicted(8, swarm, TimePoint{10min})), 10, 1);
}

TEST(RoundSplitTest, MeansFollowTheReportedTimes) {
    RoundSplit split;
    split.record(2ms, {.worker_us = 500, .gpu_us = 0});  // the worker's GPU reports no times
    EXPECT_DOUBLE_EQ(split.group_ms, 2);
    EXPECT_DOUBLE_EQ(split.worker_ms, 0.5);
    EXPECT_DOUBLE_EQ(split.gpu_ms, 0);
    for (int i = 0; i < 1000; ++i) split.record(1ms, {.worker_us = 250, .gpu_us = 100});
    EXPECT_EQ(split.groups, 1001u);
    EXPECT_NEAR(split.group_ms, 1, 1e-3);
    EXPECT_NEAR(split.worker_ms, 0.25, 1e-3);
    EXPECT_NEAR(split.gpu_ms, 0.1, 1e-9);

    // Let the worker report longer times than the hub waited: they are capped at 1 ms.
    for (int i = 0; i < 1000; ++i) split.record(1ms, {.worker_us = 9000, .gpu_us = 9000});
    EXPECT_NEAR(split.worker_ms, 1, 1e-3);
    EXPECT_NEAR(split.gpu_ms, 1, 1e-3);
}

TEST(HedgePolicyTest, ReadsAndWritesItsNames) {
    EXPECT_EQ(hedge_policy_text(*parse_hedge_policy("off")), "off");
    EXPECT_EQ(hedge_policy_text(*parse_hedge_policy("fixed 2")), "fixed 2");
    EXPECT_EQ(parse_hedge_policy("fixed:3")->copies, 3u);
    EXPECT_EQ(hedge_policy_text(*parse_hedge_policy("delayed")), "delayed");
    EXPECT_EQ(hedge_policy_text(*parse_hedge_policy("adaptive")), "adaptive");
    for (const char* wrong : {"", "on", "delayed 2", "fixed", "fixed ", "fixed 0", "fixed 9",
                              "fixed 2x", "fixed -1", "fixed2", "Fixed 2"})
        EXPECT_FALSE(parse_hedge_policy(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace moex
