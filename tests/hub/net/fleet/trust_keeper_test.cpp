// Tests how what hubs learn about a worker's answers adds up, and comes back from the store.
#include "hub/net/fleet/trust_keeper.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

constexpr TimePoint at = TimePoint{} + std::chrono::hours(1);
constexpr std::int64_t at_s = 1'800'000'000;

TrustRecord after(const TrustRecord& before, std::uint64_t rows) {
    TrustRecord record = before;
    record.rows_answered += rows;
    record.rows_verified += rows;
    record.answers_verified += rows;
    record.rows_verified_ever += rows;
    return record;
}
TrustRecord suspected(const TrustRecord& before) {
    TrustRecord record = before;
    record.rows_answered = record.rows_verified = record.answers_verified = 0;
    record.suspected = true;
    ++record.times_suspected;
    ++record.lies;
    record.lied_at = at;
    return record;
}

TEST(TrustRecordTest, ARecordComesBackFromWhatWasLearned) {
    const TrustRecord first = after({}, 100), later = after(suspected(first), 7);
    WorkerTrust stored = trust_learned({}, first, at, at_s);
    EXPECT_EQ(with_trust(stored, {}, at, at_s), first);
    stored += trust_learned(first, later, at, at_s);
    EXPECT_EQ(with_trust(stored, {.suspected = stored.suspected}, at, at_s), later);
    EXPECT_EQ(stored.rows_verified_ever, 107u);
    EXPECT_EQ(stored.lied_s, at_s);
}

TEST(TrustRecordTest, WhatTwoHubsLearnAddsUp) {
    const TrustRecord start = after({}, 10);
    WorkerTrust stored = trust_learned({}, start, at, at_s);
    stored += trust_learned(start, after(start, 5), at, at_s);
    stored += trust_learned(start, after(start, 3), at, at_s);
    EXPECT_EQ(stored.rows_verified, 18u);

    stored += trust_learned(start, suspected(start), at, at_s);
    stored += trust_learned(start, suspected(start), at, at_s);
    EXPECT_EQ(stored.lies, 2);
    EXPECT_EQ(stored.rows_verified, 0u);
}

// A hub had the worker before, and another one has caught it since.
TEST(TrustRecordTest, AnOldRecordGivesWayToTheStoredOne) {
    const TrustRecord old = after({}, 2000);
    WorkerTrust stored = trust_learned({}, old, at, at_s);
    stored += trust_learned(old, suspected(old), at, at_s);
    const TrustRecord now = after(old, 1);  // since it joined again
    const TrustRecord both = with_trust(stored, trust_learned(old, now, at, at_s), at, at_s);
    EXPECT_EQ(both.rows_verified, 1u);
    EXPECT_EQ(both.lies, 1u);
    EXPECT_TRUE(both.suspected);
}

TEST(TrustRecordTest, ARecordThatWasForgottenHereTakesNothingAway) {
    const WorkerTrust learned = trust_learned(after({}, 50), {}, at, at_s);
    EXPECT_EQ(learned.rows_answered, 0u);
    EXPECT_EQ(learned.rows_verified_ever, 0u);
    EXPECT_EQ(learned.times_suspected, 0u);
}

}  // namespace
}  // namespace moex::net
