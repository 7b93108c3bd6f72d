// Tests the record of a span's holder, and how many wrong answers it can place.
#include "hub/dispatch/span/span_trust.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace moex {
namespace {

constexpr SpanCheckRule rule{.to_prove = 3, .rate = 0.25, .doubted_checks = 5};

TEST(SpanTrustTest, NewHolderIsProvenByChecks) {
    SpanTrust trust(rule);
    for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(trust.is_proven());
        EXPECT_TRUE(trust.wants_check(0.99));
        EXPECT_EQ(trust.on_check(SpanFinding::right), SpanEnd::none);
    }
    EXPECT_TRUE(trust.is_proven());
    EXPECT_TRUE(trust.wants_check(0.24));
    EXPECT_FALSE(trust.wants_check(0.25));
}

TEST(SpanTrustTest, SecondWrongCheckIsALieWhileTheHolderIsDoubted) {
    for (const int num_right : {0, 4, 5}) {
        SpanTrust trust(rule);
        for (int i = 0; i < 3; ++i) trust.on_check(SpanFinding::right);
        EXPECT_EQ(trust.on_check(SpanFinding::wrong), SpanEnd::none);
        for (int i = 0; i < num_right; ++i) {
            EXPECT_FALSE(trust.is_proven());
            trust.on_check(SpanFinding::right);
        }
        EXPECT_EQ(trust.is_proven(), num_right == 5);
        EXPECT_EQ(trust.on_check(SpanFinding::wrong),
                  num_right < 5 ? SpanEnd::lied : SpanEnd::none);
        EXPECT_EQ(trust.has_ended(), num_right < 5);
    }
}

TEST(SpanTrustTest, FailureCostsOneCheckAndNoDoubt) {
    SpanTrust trust(rule);
    for (int i = 0; i < 3; ++i) trust.on_check(SpanFinding::right);
    trust.on_failure();
    EXPECT_FALSE(trust.is_proven());
    trust.on_check(SpanFinding::right);
    EXPECT_TRUE(trust.is_proven());
    // A doubted holder stays doubted.
    trust.on_check(SpanFinding::wrong);
    trust.on_failure();
    for (int i = 0; i < 4; ++i) trust.on_check(SpanFinding::right);
    EXPECT_FALSE(trust.is_proven());
    EXPECT_EQ(trust.on_check(SpanFinding::wrong), SpanEnd::lied);
}

// A holder whose answers differ as honest ones may is never called a liar. One answer that cannot
// be honest is enough to call it so.
TEST(SpanTrustTest, HonestDifferencesSetTheHolderAside) {
    using enum SpanFinding;
    for (const SpanFinding first : {differs, wrong})
        for (const SpanFinding second : {differs, wrong}) {
            SpanTrust trust(rule);
            for (int i = 0; i < 3; ++i) trust.on_check(SpanFinding::right);
            EXPECT_EQ(trust.on_check(first), SpanEnd::none);
            for (int i = 0; i < 4; ++i) trust.on_check(SpanFinding::right);
            EXPECT_FALSE(trust.is_proven());
            EXPECT_EQ(trust.on_check(second),
                      first == differs && second == differs ? SpanEnd::set_aside : SpanEnd::lied);
            EXPECT_TRUE(trust.has_ended());
            EXPECT_EQ(trust.on_check(SpanFinding::wrong), SpanEnd::none) << "a record ends once";
            for (int i = 0; i < 100; ++i) trust.on_check(SpanFinding::right);
            EXPECT_FALSE(trust.is_proven());
        }
    // A doubt that is over decides nothing.
    SpanTrust trust(rule);
    trust.on_check(SpanFinding::wrong);
    for (int i = 0; i < 5; ++i) trust.on_check(SpanFinding::right);
    EXPECT_TRUE(trust.is_proven());
    trust.on_check(SpanFinding::differs);
    EXPECT_EQ(trust.on_check(SpanFinding::differs), SpanEnd::set_aside);
}

// Plays liars against the default rule: their wrong answers are findings of one kind, or of either
// kind in turn. A wrong answer counts if the step is no check.
double played(double lies, bool is_proven, int liars,
              const std::vector<SpanFinding>& findings = {SpanFinding::wrong}) {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<> draw;
    double placed = 0;
    for (int i = 0; i < liars; ++i) {
        SpanTrust trust{SpanCheckRule{}};
        while (is_proven && !trust.is_proven()) trust.on_check(SpanFinding::right);
        for (std::size_t turn = 0; !trust.has_ended(); ++turn) {
            const bool is_wrong = draw(random) < lies;
            if (trust.wants_check(draw(random)))
                trust.on_check(is_wrong ? findings[turn % findings.size()] : SpanFinding::right);
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

// Answers that differ moderately, always or in turn with others, get no more of them used.
TEST(SpanTrustTest, ModerateLiarPlacesNoMoreThanExpected) {
    const SpanCheckRule usual;
    using enum SpanFinding;
    for (const std::vector<SpanFinding>& findings : {std::vector{differs}, {differs, wrong}}) {
        for (const bool is_proven : {false, true})
            for (const double lies : {1.0, 0.1, 0.01}) {
                constexpr int liars = 4000;
                const double expected = expected_wrong_answers(usual, lies, is_proven);
                EXPECT_NEAR(played(lies, is_proven, liars, findings), expected,
                            5 * 70 / std::sqrt(liars))
                    << lies << ' ' << is_proven << ' ' << findings.size();
            }
        EXPECT_EQ(played(1, false, 10, findings), 0);
    }
}

}  // namespace
}  // namespace moex
