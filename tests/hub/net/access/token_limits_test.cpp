// Tests of the limit of tokens in a minute, with a clock that the test sets.
#include "hub/net/access/token_limits.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

class TokenLimitsTest : public testing::Test {
  protected:
    TokenLimits::Reservation reserve(std::uint64_t tokens_max, const char* key = "key") {
        return limits_.reserve(now_, key, 1200, tokens_max);
    }
    TokenLimits limits_;
    TimePoint now_{};
};

TEST_F(TokenLimitsTest, ReservedTokensAreMissingUntilTheyAreReturned) {
    EXPECT_EQ(reserve(1000).tokens, 1000u);
    EXPECT_EQ(reserve(200).tokens, 200u);
    // the bucket refills 100 tokens in five seconds
    EXPECT_NEAR(to_ms(reserve(100).wait), 5000, 1);
    EXPECT_EQ(reserve(100, "another").wait, Duration{0});

    limits_.settle(now_, "key", 1000, 300);
    EXPECT_EQ(reserve(700).wait, Duration{0});
    EXPECT_GT(reserve(1).wait, Duration{0});
}

TEST_F(TokenLimitsTest, TheWaitThatIsToldIsEnough) {
    reserve(1200);
    const Duration wait = reserve(600).wait;
    now_ += wait - 1ms;
    EXPECT_GT(reserve(600).wait, Duration{0});
    now_ += 1ms;
    EXPECT_EQ(reserve(600).wait, Duration{0});
}

TEST_F(TokenLimitsTest, MoreThanAMinutesWorthWaitsForAFullBucketAndIsOwed) {
    EXPECT_EQ(reserve(1).tokens, 1u);
    EXPECT_GT(reserve(5000).wait, Duration{0});
    limits_.settle(now_, "key", 1, 0);

    const auto all = reserve(5000);
    EXPECT_EQ(all.wait, Duration{0});
    EXPECT_EQ(all.tokens, 1200u);
    // The request used 1200 tokens more than reserved, which is one minute's limit.
    limits_.settle(now_, "key", all.tokens, 2400);
    EXPECT_NEAR(to_ms(reserve(1200).wait), 120'000, 1);
}

TEST_F(TokenLimitsTest, ABucketHoldsNoMoreThanAMinute) {
    reserve(1200);
    now_ += std::chrono::hours(1);
    limits_.settle(now_, "key", 1200, 0);
    EXPECT_EQ(reserve(1200).wait, Duration{0});
    EXPECT_GT(reserve(1).wait, Duration{0});
}

TEST_F(TokenLimitsTest, ALowerLimitHoldsAtOnce) {
    EXPECT_EQ(reserve(10).wait, Duration{0});
    EXPECT_EQ(limits_.reserve(now_, "key", 60, 60).wait, Duration{0});
    EXPECT_NEAR(to_ms(limits_.reserve(now_, "key", 60, 60).wait), 60'000, 1);
}

}  // namespace
}  // namespace moex::net
