// Tests the measured times of spans.
#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "hub/dispatch/span/span_times.h"

namespace moex {
namespace {

TEST(SpanTimesTest, NothingIsKnownBeforeAMeasurement) {
    const SpanTimes times;
    for (const std::uint32_t rows : {1u, 16u, 5000u}) {
        EXPECT_EQ(times.expected(rows), std::nullopt);
        EXPECT_EQ(times.at_least(rows), std::nullopt);
        EXPECT_EQ(times.at_most(rows), std::nullopt);
    }
}

TEST(SpanTimesTest, OtherNumbersOfRowsGiveBounds) {
    SpanTimes times;
    times.record(1, 31ms);
    times.record(64, 75ms);
    EXPECT_EQ(times.at_least(16), 31ms);
    EXPECT_EQ(times.at_most(16), 75ms);
    EXPECT_EQ(times.expected(33), 75ms) << "33 and 64 rows are taken for one number";
    EXPECT_EQ(times.at_least(33), times.at_most(33));
    EXPECT_EQ(times.at_most(65), std::nullopt);
    EXPECT_EQ(times.expected(65), 75ms);
}

// The first step of all is slow, later ones stall now and then, and then the line becomes longer.
TEST(SpanTimesTest, DisturbedStepChangesLittleAndALongerLineCountsSoon) {
    SpanTimes times;
    for (const Duration took : {200ms, 10ms, 11ms}) times.record(1, took);
    EXPECT_EQ(times.expected(1), 11ms);
    for (int i = 0; i < 100; ++i) {
        times.record(1, i % 5 == 0 ? 2000ms : 10ms);
        EXPECT_LE(times.expected(1), 11ms) << i;
    }
    for (int i = 0; i < 3; ++i) times.record(1, 300ms);
    EXPECT_EQ(times.expected(1), 300ms);
}

// The plain way: the median of the newest five, by sorting.
TEST(SpanTimesTest, IsTheMedianOfTheNewestFive) {
    std::mt19937 random(1);
    SpanTimes times;
    std::vector<Duration> all;
    for (int i = 0; i < 1000; ++i) {
        all.push_back(std::chrono::microseconds(random() % 1000));
        times.record(3, all.back());
        std::vector<Duration> newest(all.end() - std::min<std::ptrdiff_t>(5, i + 1), all.end());
        std::sort(newest.begin(), newest.end());
        EXPECT_EQ(times.expected(4), newest[(newest.size() - 1) / 2]);
    }
}

}  // namespace
}  // namespace moex
