// Tests the record of a span's holder, and how many wrong answers it can place.
#include "hub/dispatch/span/span_trust.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace moex {
namespace {

constexpr SpanCheckRule rule{.to_prove = 3, .rate = 0.25, .doubted_checks = 5};

TEST(SpanTrustTest, NewHolderIsProvenByChecks) {
    SpanTrust trust(rule);
    for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(trust.is_proven());
        EXPECT_TRUE(trust.wants_check(0.99));
        EXPECT_FALSE(trust.on_check(true));
    }
    EXPECT_TRUE(trust.is_proven());
    EXPECT_TRUE(trust.wants_check(0.24));
    EXPECT_FALSE(trust.wants_check(0.25));
}

TEST(SpanTrustTest, SecondWrongCheckIsALieWhileTheHolderIsDoubted) {
    for (const int right : {0, 4, 5}) {
        SpanTrust trust(rule);
        for (int i = 0; i < 3; ++i) trust.on_check(true);
        EXPECT_FALSE(trust.on_check(false));
        for (int i = 0; i < right; ++i) {
            EXPECT_FALSE(trust.is_proven());
            trust.on_check(true);
        }
        EXPECT_EQ(trust.is_proven(), right == 5);
        EXPECT_EQ(trust.on_check(false), right < 5);
        EXPECT_EQ(trust.has_lied(), right < 5);
    }
}

TEST(SpanTrustTest, FailureCostsOneCheckAndNoDoubt) {
    SpanTrust trust(rule);
    for (int i = 0; i < 3; ++i) trust.on_check(true);
    trust.on_failure();
    EXPECT_FALSE(trust.is_proven());
    trust.on_check(true);
    EXPECT_TRUE(trust.is_proven());
    // A doubted holder stays doubted.
    trust.on_check(false);
    trust.on_failure();
    for (int i = 0; i < 4; ++i) trust.on_check(true);
    EXPECT_FALSE(trust.is_proven());
    EXPECT_TRUE(trust.on_check(false));
}

// Plays liars against the default rule. A wrong answer counts if the step is no check.
double played(double lies, bool is_proven, int liars) {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<> draw;
    double placed = 0;
    for (int i = 0; i < liars; ++i) {
        SpanTrust trust{SpanCheckRule{}};
        while (is_proven && !trust.is_proven()) trust.on_check(true);
        while (!trust.has_lied()) {
            const bool is_wrong = draw(random) < lies;
            if (trust.wants_check(draw(random)))
                trust.on_check(!is_wrong);
            else
                placed += is_wrong;
        }
    }
    return placed / liars;
}

TEST(SpanTrustTest, LiarPlacesAsManyWrongAnswersAsExpected) {
    const SpanCheckRule usual;
    EXPECT_EQ(expected_wrong_answers(usual, 0), 0);
    EXPECT_EQ(expected_wrong_answers(usual, 1), 0);
    EXPECT_EQ(expected_wrong_answers(usual, 1, true), 63);
    EXPECT_NEAR(expected_wrong_answers(usual, 0.01), 63, 0.5);
    for (const bool is_proven : {false, true})
        for (const double lies : {1.0, 0.1, 0.01}) {
            constexpr int liars = 4000;
            const double expected = expected_wrong_answers(usual, lies, is_proven);
            // The number of one liar varies about as much as its mean, which is at most 70.
            EXPECT_NEAR(played(lies, is_proven, liars), expected, 5 * 70 / std::sqrt(liars))
                << lies << ' ' << is_proven;
        }
    EXPECT_EQ(played(1, false, 10), 0);
}

}  // namespace
}  // namespace moex
