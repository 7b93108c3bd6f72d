// Tests of bans: bans get longer, expire, outlast a restart of the hub, and can be lifted by
// another process.
#include "hub/registry/bans.h"

#include <gtest/gtest.h>

#include "hub/registry/registry.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

class BansTest : public testing::Test {
  protected:
    BansTest() {
        std::string pattern = (fs::temp_directory_path() / "moex-bans-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        root_ = pattern;
        registry_ = *Registry::open(root_ / "state");
        bans_ = open();
    }
    ~BansTest() override { fs::remove_all(root_); }
    std::unique_ptr<BanBook> open() { return *BanBook::open(root_ / "state"); }

    static constexpr std::int64_t now = 1'800'000'000;
    fs::path root_;
    std::unique_ptr<Registry> registry_;
    std::unique_ptr<BanBook> bans_;
};

TEST_F(BansTest, EachBanIsTwiceAsLongUpToAMonth) {
    EXPECT_EQ(bans_->left_s("key", now), 0);
    std::int64_t wanted = 600;
    for (std::uint32_t times = 1; times <= 40; ++times) {
        const auto ban = bans_->add("key", "Ada", "3 answers", now);
        ASSERT_TRUE(ban.ok()) << ban.error().message;
        EXPECT_EQ(ban->times, times);
        EXPECT_EQ(bans_->left_s("key", now), wanted) << times;
        wanted = std::min<std::int64_t>(2 * wanted, 30 * 86'400);
    }
    EXPECT_EQ(bans_->left_s("another", now), 0);
}

TEST_F(BansTest, AHostsOwnBanIsAsLongAsItSays) {
    constexpr std::int64_t day_s = 86'400;
    ASSERT_TRUE(bans_->add("key", "", "its host's order", now, 90 * day_s).ok());
    EXPECT_EQ(bans_->left_s("key", now), 90 * day_s);
    EXPECT_EQ(bans_->add("key", "", "", now)->until_s, now + 1200) << "the second one";
}

TEST_F(BansTest, ABanEndsAndIsRemembered) {
    ASSERT_TRUE(bans_->add("key", "", "", now).ok());
    EXPECT_EQ(bans_->left_s("key", now + 599), 1);
    EXPECT_EQ(bans_->left_s("key", now + 600), 0);
    ASSERT_EQ(bans_->list().size(), 1u);
    EXPECT_EQ(bans_->add("key", "", "", now + 7200)->until_s, now + 7200 + 1200);
}

TEST_F(BansTest, BansOutliveTheHubAndTheLatestIsFirst) {
    ASSERT_TRUE(bans_->add("a", "Ada", "first", now).ok());
    ASSERT_TRUE(bans_->add("b", "Bob", "second", now + 1).ok());
    bans_.reset();
    registry_.reset();
    registry_ = *Registry::open(root_ / "state");
    const std::vector<Ban> bans = open()->list();
    ASSERT_EQ(bans.size(), 2u);
    EXPECT_EQ(bans[0].worker_key, "b");
    EXPECT_EQ(bans[1].nickname, "Ada");
    EXPECT_EQ(bans[1].reason, "first");
}

TEST_F(BansTest, AnotherProcessLiftsOneByItsBeginning) {
    for (const char* key : {"abcd", "abce", "x%_"}) ASSERT_TRUE(bans_->add(key, "", "", now).ok());
    const auto beside = open();
    EXPECT_EQ(beside->lift("abc").error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(beside->lift("%").error().code, ErrorCode::not_found);
    EXPECT_EQ(beside->lift("").error().code, ErrorCode::not_found);
    ASSERT_TRUE(beside->lift("abcd").ok());
    EXPECT_EQ(bans_->left_s("abcd", now), 0);
    EXPECT_EQ(bans_->left_s("abce", now), 600);
    EXPECT_EQ(bans_->add("abcd", "", "", now)->times, 1u) << "lifted is forgiven";
}

}  // namespace
}  // namespace moex
