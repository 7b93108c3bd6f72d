// Tests that a cause that lasts is logged once a minute, with the number of lines left out.
#include "hub/base/log_limit.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

using namespace std::chrono_literals;

TEST(LogLimitTest, OneLineOfACauseIsAdmittedEachMinute) {
    LogLimit limit;
    const TimePoint start{};
    int admitted = 0;
    for (Duration at{}; at < 3min; at += 100ms) {
        const auto left_out = limit.admit("disk full", start + at);
        if (!left_out) continue;
        ++admitted;
        EXPECT_EQ(*left_out, at == Duration{} ? 0u : 599u);
    }
    EXPECT_EQ(admitted, 3);
}

TEST(LogLimitTest, CausesDoNotHideEachOther) {
    LogLimit limit;
    const TimePoint start{};
    EXPECT_TRUE(limit.admit("disk full", start));
    EXPECT_TRUE(limit.admit("no descriptors", start + 1s));
    EXPECT_FALSE(limit.admit("disk full", start + 2s));
    EXPECT_FALSE(limit.admit("no descriptors", start + 2s));
}

TEST(LogLimitTest, NumberOfCausesInMemoryIsBounded) {
    LogLimit limit;
    const TimePoint start{};
    EXPECT_TRUE(limit.admit("first", start));
    for (int i = 1; i <= 256; ++i)
        EXPECT_TRUE(limit.admit(std::to_string(i), start + i * 1ms)) << i;
    EXPECT_FALSE(limit.admit("256", start + 1s));
    EXPECT_TRUE(limit.admit("first", start + 1s)) << "the oldest cause was forgotten";
}

}  // namespace
}  // namespace moex
