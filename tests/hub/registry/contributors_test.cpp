// Tests of contributors' work: work is counted by day, ranked and deleted; and tests of challenges
// and signatures.

#include <gtest/gtest.h>

#include "hub/base/signing_key.h"
#include "hub/registry/nonces.h"
#include "hub/registry/registry.h"
#include "hub/registry/sqlite_database.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

PublicKey key_of(unsigned char value) {
    PublicKey key;
    key.fill(static_cast<std::byte>(value));
    return key;
}

class ContributorsTest : public testing::Test {
  protected:
    ContributorsTest() {
        std::string pattern = (fs::temp_directory_path() / "moex-contributors-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        root_ = pattern;
        registry_ = *Registry::open(root_);
    }
    ~ContributorsTest() override { fs::remove_all(root_); }

    // Records `pairs` pairs of work for the day `days_ago` days ago.
    void did(unsigned char key, std::int64_t days_ago, std::uint64_t pairs) {
        registry_->add_contribution(key_of(key), "", {});
        registry_->flush();
        auto database = *SqliteDatabase::open(root_ / "moex.sqlite");
        Statement add(*database, "INSERT INTO contributor_days VALUES (?, ?, ?, 0)");
        add.bind(ByteView(key_of(key))).bind((today() - days_ago) * day_s);
        ASSERT_TRUE(add.bind(static_cast<std::int64_t>(pairs)).run().ok());
    }
    static std::int64_t today() { return now / day_s; }
    Contributions told(const std::optional<PublicKey>& mine, std::int64_t at_s) {
        registry_->flush();
        return registry_->contributions(mine, at_s);
    }
    ContributorTotals totals(unsigned char key) { return told(key_of(key), now).mine.value(); }

    static constexpr std::int64_t day_s = 86'400;
    // The present time, because the registry counts work for the real day.
    inline static const std::int64_t now = std::time(nullptr);
    fs::path root_;
    std::unique_ptr<Registry> registry_;
};

TEST_F(ContributorsTest, TwoWorkersOfOneKeyAddUpAndOthersStandBesideThem) {
    registry_->add_work({100, 60});
    registry_->add_contribution(key_of(1), "Ada", {10, 5});
    registry_->add_contribution(key_of(1), "Ada", {20, 10});
    registry_->add_contribution(key_of(2), "", {40, 0});
    registry_->add_contribution(key_of(3), "", {30, 0});

    const Contributions found = told(key_of(1), std::time(nullptr));
    EXPECT_EQ(found.contributors, 3u);
    EXPECT_EQ(found.today, (LentWork{100, 60}));
    ASSERT_EQ(found.board.size(), 3u);
    EXPECT_EQ(found.board[0].pairs, 40u);
    EXPECT_EQ(found.board[0].nickname, "");
    EXPECT_EQ(found.board[0].rank, 1u);
    EXPECT_EQ(found.board[1].rank, 2u);
    EXPECT_EQ(found.board[2].rank, 2u) << "equal work, equal rank";
    for (const BoardRow& row : found.board) EXPECT_EQ(row.is_mine, row.nickname == "Ada");

    ASSERT_TRUE(found.mine);
    EXPECT_EQ(LentWork(*found.mine), (LentWork{30, 15}));
    EXPECT_EQ(found.mine->today, (LentWork{30, 15}));
    EXPECT_EQ(found.mine->rank, 2u);
    EXPECT_EQ(found.mine->streak_days, 1u);
    ASSERT_EQ(found.mine->days.size(), 1u);
    EXPECT_FALSE(told(key_of(9), now).mine);
    EXPECT_FALSE(told(std::nullopt, now).mine);
}

TEST_F(ContributorsTest, CountsOutliveTheHubAndANicknameCanBeTakenBack) {
    registry_->add_contribution(key_of(1), "Ada", {10, 0});
    registry_.reset();
    registry_ = *Registry::open(root_);
    EXPECT_EQ(totals(1).nickname, "Ada");
    registry_->add_contribution(key_of(1), "", {});
    EXPECT_EQ(totals(1).nickname, "");
    EXPECT_EQ(totals(1).pairs, 10u);
}

TEST_F(ContributorsTest, AStreakEndsTodayOrYesterday) {
    for (const std::int64_t ago : {1, 2, 3, 5}) did(1, ago, 7);
    EXPECT_EQ(totals(1).streak_days, 3u) << "today may still come";
    did(1, 0, 7);
    EXPECT_EQ(totals(1).streak_days, 4u);
    did(2, 2, 7);
    EXPECT_EQ(totals(2).streak_days, 0u);
    did(3, 0, 7);
    EXPECT_EQ(totals(3).streak_days, 1u);
}

TEST_F(ContributorsTest, ThirtyDaysAreShownTheOldestFirst) {
    for (std::int64_t ago = 0; ago < 40; ++ago) did(1, ago, static_cast<std::uint64_t>(1 + ago));
    const ContributorTotals found = totals(1);
    ASSERT_EQ(found.days.size(), 30u);
    EXPECT_EQ(found.days.front().day_s, (today() - 29) * day_s);
    EXPECT_EQ(found.days.back().day_s, today() * day_s);
    EXPECT_EQ(found.today.pairs, 1u);
    EXPECT_EQ(found.streak_days, 40u);
}

TEST_F(ContributorsTest, ForgottenContributorIsGoneWithItsDaysAndOthersStay) {
    did(1, 3, 7);
    did(2, 3, 7);
    registry_->add_contribution(key_of(1), "Ada", {10, 5});  // not yet written
    ASSERT_TRUE(registry_->forget_contributor(key_of(1)).ok());
    EXPECT_FALSE(told(key_of(1), now).mine);
    EXPECT_EQ(told(std::nullopt, now).contributors, 1u);
    EXPECT_EQ(totals(2).days.size(), 1u);

    registry_->add_contribution(key_of(1), "", {1, 0});
    EXPECT_EQ(totals(1).days.size(), 1u) << "it begins anew";
    EXPECT_TRUE(registry_->forget_contributor(key_of(7)).ok()) << "nobody knew it";
}

TEST_F(ContributorsTest, NoncesDifferByWorkerByPurposeAndByProcess) {
    const Nonces one, other;
    EXPECT_EQ(one.for_worker(7), one.for_worker(7));
    EXPECT_NE(one.for_worker(7), one.for_worker(8));
    EXPECT_NE(one.for_worker(7), other.for_worker(7));
    EXPECT_EQ(one.for_worker(7).size(), 64u);

    const std::int64_t begin_s = 1'800'000'000;
    const std::string challenge = one.to_forget(begin_s);
    EXPECT_TRUE(one.fits_to_forget(challenge, begin_s + 599));
    EXPECT_FALSE(one.fits_to_forget(challenge, begin_s + 600));
    EXPECT_FALSE(one.fits_to_forget(challenge, begin_s - 1));
    EXPECT_FALSE(other.fits_to_forget(challenge, begin_s));
    EXPECT_FALSE(one.fits_to_forget("", begin_s));
    EXPECT_FALSE(one.fits_to_forget(one.for_worker(begin_s / 300), begin_s));
}

// Key, message and signature are those of RFC 8032, section 7.1, test 2.
TEST(SignatureTest, KnownAnswer) {
    const PublicKey key = parse_public_key(
                              "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
                              .value();
    const Signature signature =
        parse_signature(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00")
            .value();
    EXPECT_TRUE(signature_fits(key, signature, "r"));
    EXPECT_FALSE(signature_fits(key, signature, "s"));
    EXPECT_FALSE(signature_fits(key, signature, ""));
    Signature bent = signature;
    bent[63] ^= std::byte{1};
    EXPECT_FALSE(signature_fits(key, bent, "r"));
    EXPECT_FALSE(signature_fits(key_of(0), signature, "r"));
    EXPECT_FALSE(signature_fits(key_of(0xff), Signature{}, "r"));
}

}  // namespace
}  // namespace moex
