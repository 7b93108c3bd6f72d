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
    const TrustRecord liar = suspected(suspected(after({}, 50)));
    // It may have begun anew since.
    for (const TrustRecord& now : {TrustRecord{}, after({}, 8)}) {
        WorkerTrust stored = trust_learned({}, liar, at, at_s);
        const WorkerTrust learned = trust_learned(liar, now, at, at_s);
        EXPECT_EQ(learned.lies, 0);
        EXPECT_EQ(learned.rows_verified_ever, 0u);
        EXPECT_EQ(learned.times_suspected, 0u);
        stored += learned;
        EXPECT_EQ(stored.lies, 2);
        EXPECT_TRUE(stored.suspected);
        EXPECT_EQ(stored.lied_s, at_s);
    }
    EXPECT_EQ(trust_learned(liar, suspected({}), at, at_s).lies, 0);
}

TrustRecord with_lies(TrustRecord record, std::uint32_t lies) {
    record.lies = lies;
    return record;
}

// A day without a lie ends one of them, at each hub that knows of it.
TEST(TrustRecordTest, LiesThatSeveralHubsForgetDoNotPayForLaterOnes) {
    const TrustRecord liar = suspected(after({}, 50)), forgiven = with_lies(liar, 0);
    WorkerTrust stored = trust_learned({}, liar, at, at_s);
    for (int hub = 0; hub < 3; ++hub) stored += trust_learned(liar, forgiven, at, at_s);
    EXPECT_EQ(stored.lies, 0);
    stored += trust_learned(forgiven, suspected(forgiven), at, at_s);
    EXPECT_EQ(stored.lies, 1);
}

TEST(TrustRecordTest, LiesThatAreKnownHereStayAndAreNotWrittenAgain) {
    const TrustRecord liar = with_lies(suspected(after({}, 50)), 2);
    const auto found = [&](std::uint32_t written, std::uint32_t local, std::int64_t stored) {
        WorkerTrust store = trust_learned({}, liar, at, at_s);
        store.lies = stored;
        return trust_found(with_lies(liar, written), with_lies(liar, local), store, at, at_s);
    };
    struct Case {
        std::uint32_t written, local;
        std::int64_t stored;
        std::uint32_t want_local;
    };
    for (const Case& one : {Case{2, 2, 2, 2},
                            {2, 2, 1, 2},
                            {2, 2, 0, 2},
                            {1, 2, 0, 2},
                            {1, 2, 1, 2},
                            {1, 2, 4, 5},
                            {2, 1, 2, 1},
                            {2, 1, 0, 1},
                            {0, 0, 3, 3}}) {
        const FoundTrust got = found(one.written, one.local, one.stored);
        EXPECT_EQ(got.local.lies, one.want_local) << one.written << one.local << one.stored;
        EXPECT_GE(got.local.lies, one.local) << "never fewer than are known here";
        // What is written next is what was learned here, whatever the store has.
        EXPECT_EQ(trust_learned(got.written, got.local, at, at_s).lies,
                  std::int64_t{one.local} - std::int64_t{one.written});
    }
}

TEST(TrustLookupsTest, OneJobLooksUpAllThatWaitWithinTheLimit) {
    TrustLookups lookups;
    EXPECT_TRUE(lookups.begin().empty());
    lookups.add("first");
    EXPECT_EQ(lookups.begin(), std::set<std::string>{"first"});
    for (int i = 0; i < 10'000; ++i) lookups.add(text("worker", i));
    lookups.add("worker1");
    EXPECT_TRUE(lookups.begin().empty()) << "a job runs";
    lookups.end();
    EXPECT_EQ(lookups.begin().size(), TrustLookups::waiting_max);
    lookups.end();
    EXPECT_TRUE(lookups.begin().empty());
    lookups.add("next");
    EXPECT_EQ(lookups.begin(), std::set<std::string>{"next"});
}

}  // namespace
}  // namespace moex::net
