// The conformance suite of the registry: the same cases over sqlite and over a real PostgreSQL.
#include <gtest/gtest.h>

#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>

#include "hub/registry/registry.h"
#include "tests/support/must.h"
#include "tests/support/postgres_server.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
using test::must;
using test::PostgresServer;

constexpr auto soon = std::chrono::seconds(60);

class StoreTest : public testing::TestWithParam<const char*> {
  protected:
    StoreTest() {
        std::string pattern = (fs::temp_directory_path() / "moex-store-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        root_ = pattern;
    }
    ~StoreTest() override { fs::remove_all(root_); }
    void SetUp() override {
        if (!is_shared()) return;
        if (!PostgresServer::is_installed()) GTEST_SKIP() << "SKIPPED: no postgresql-15";
        server_ = std::make_unique<PostgresServer>();
    }
    bool is_shared() const { return GetParam() == std::string("postgres"); }
    // Opens the store as a hub, or as a command beside it: over sqlite they share a folder, over
    // PostgreSQL they share nothing but the store.
    std::unique_ptr<Registry> open(const std::string& name = "hub") {
        if (!is_shared()) return must(Registry::open(root_ / "state"));
        return must(Registry::open({.directory = root_ / name, .url = server_->url()}));
    }

    fs::path root_;
    std::unique_ptr<PostgresServer> server_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, testing::Values("sqlite", "postgres"),
                         [](const auto& parameter) { return std::string(parameter.param); });

// Counts the calls of a registry's watcher, and waits for what they bring.
class Watch {
  public:
    explicit Watch(Registry& registry) : registry_(registry) {
        registry_.watch_keys([this] {
            const std::lock_guard lock(mutex_);
            wake_.notify_all();
        });
    }
    ~Watch() { registry_.watch_keys(nullptr); }
    template <class Condition>
    bool until(Condition condition) {
        std::unique_lock lock(mutex_);
        return wake_.wait_for(lock, soon, condition);
    }

  private:
    Registry& registry_;
    std::mutex mutex_;
    std::condition_variable wake_;
};

TEST_P(StoreTest, KeysOutliveTheHubAndRevokedOnesOpenNothing) {
    std::string key, id;
    {
        const auto hub = open();
        EXPECT_FALSE(hub->has_key(Role::api));
        const MadeKey made = must(hub->make_key(
            {.name = "Ada's \xc3\xa9", .tokens_per_minute = 500, .expires_s = 1LL << 40}));
        key = made.key;
        id = made.info.id;
        ASSERT_TRUE(hub->add_key(Role::admin, "own", "a key that the host chose").ok());
    }
    const auto hub = open();
    ASSERT_TRUE(hub->find_key(key));
    EXPECT_EQ(hub->find_key(key)->name, "Ada's \xc3\xa9");
    EXPECT_EQ(hub->find_key(key)->tokens_per_minute, 500u);
    EXPECT_EQ(hub->find_key(key)->expires_s, 1LL << 40);
    EXPECT_EQ(hub->key_role("a key that the host chose"), Role::admin);
    EXPECT_FALSE(hub->find_key(key + "x"));
    EXPECT_EQ(hub->revoke_key("bob").error().code, ErrorCode::not_found);
    EXPECT_EQ(must(hub->revoke_key(id)).id, id);
    EXPECT_FALSE(hub->find_key(key));
    EXPECT_EQ(hub->revoke_key(id).error().code, ErrorCode::not_found);
    EXPECT_EQ(hub->keys().size(), 2u);
    // A key of the host opens again when it is set again.
    ASSERT_TRUE(hub->revoke_key("own").ok());
    ASSERT_TRUE(hub->add_key(Role::admin, "own", "a key that the host chose").ok());
    EXPECT_EQ(hub->key_role("a key that the host chose"), Role::admin);
}

TEST_P(StoreTest, ASetKeyEndsThoseOfItsNameAlone) {
    const auto hub = open();
    ASSERT_TRUE(hub->set_key(Role::join, "link", "the token of yesterday").ok());
    ASSERT_TRUE(hub->add_key(Role::join, "another", "kept, it has another name").ok());
    ASSERT_TRUE(hub->set_key(Role::join, "link", "the token of today").ok());
    EXPECT_FALSE(hub->key_role("the token of yesterday"));
    EXPECT_EQ(hub->key_role("the token of today"), Role::join);
    EXPECT_EQ(hub->key_role("kept, it has another name"), Role::join);
}

TEST_P(StoreTest, AnotherProcessSeesKeysAsTheyAreMadeAndRevoked) {
    const auto hub = open("one"), beside = open("other");
    Watch watch(*hub);
    const MadeKey made = must(beside->make_key({.name = "ada"}));
    EXPECT_TRUE(watch.until([&] { return hub->find_key(made.key).has_value(); }));
    ASSERT_TRUE(beside->revoke_key("ada").ok());
    EXPECT_TRUE(watch.until([&] { return !hub->find_key(made.key); }));
    EXPECT_FALSE(hub->key_opens(made.info.id));
}

TEST_P(StoreTest, TheJoinTokenIsOneAndARotatedOneEndsEverywhere) {
    const auto hub = open("one"), beside = open("other");
    const std::string before = must(hub->join_token());
    EXPECT_EQ(must(beside->join_token()), before);
    ASSERT_TRUE(hub->set_key(Role::join, join_link_name, before).ok());
    Watch watch(*hub);
    ASSERT_TRUE(beside->revoke_key(join_link_name).ok());
    const std::string after = must(beside->join_token());
    EXPECT_NE(before, after);
    EXPECT_TRUE(
        watch.until([&] { return hub->join_allowed(after) && !hub->join_allowed(before); }));
    EXPECT_EQ(must(hub->join_token()), after);
}

TEST_P(StoreTest, UseOfTwoProcessesAddsUp) {
    {
        const auto hub = open("one"), beside = open("other");
        for (Registry* registry : {hub.get(), beside.get()}) {
            registry->add_token_use("1a2b3c4d", {.requests = 1, .prompt_tokens = 5});
            registry->add_token_use("1a2b3c4d", {.answer_tokens = 2});
            registry->add_to_counter("calls", 3);
            registry->flush();
        }
    }
    const auto hub = open();
    hub->add_token_use("1a2b3c4d", {.answer_tokens = 3});
    TokenUse sum;  // the test may run over midnight
    for (const TokenUseOfDay& day : hub->token_use()) {
        EXPECT_EQ(day.day_s % 86'400, 0);
        EXPECT_EQ(day.key_id, "1a2b3c4d");
        sum.requests += day.requests;
        sum.prompt_tokens += day.prompt_tokens;
        sum.answer_tokens += day.answer_tokens;
    }
    EXPECT_EQ(sum.requests, 2u);
    EXPECT_EQ(sum.prompt_tokens, 10u);
    EXPECT_EQ(sum.answer_tokens, 7u);
    ASSERT_EQ(hub->counters().size(), 1u);
    EXPECT_EQ(hub->counters()[0], (std::pair<std::string, std::uint64_t>("calls", 6)));
}

TEST_P(StoreTest, WorkersAndMinutesAddUp) {
    constexpr std::int64_t now_s = 1'800'000'000 - 1'800'000'000 % 60, day_s = 86'400;
    const auto hub = open();
    // A worker chooses its names: what is no UTF-8 must not make a batch fail.
    hub->record_worker({"w1", "a\xff\xc0z", std::string("G\0U", 3), 10, 100, 1, 50, 60});
    hub->record_minute({.minute_s = now_s - 8 * day_s, .answer_tokens = 1});
    hub->record_minute({.minute_s = now_s,
                        .answer_tokens = 3,
                        .answers = 1,
                        .call_p99_us = 50,
                        .workers = 4,
                        .covered = 9,
                        .units = 10});
    hub->flush();
    hub->record_worker({"w1", "ada", "GPU", 5, 50, 0, 40, 55});
    hub->record_minute({.minute_s = now_s,
                        .answer_tokens = 5,
                        .answers = 2,
                        .call_p99_us = 20,
                        .call_p999_us = 90,
                        .workers = 1,
                        .covered = 7,
                        .units = 10});

    const auto workers = hub->workers();
    ASSERT_EQ(workers.size(), 1u);
    EXPECT_EQ(workers[0].nickname, "ada");
    EXPECT_EQ(workers[0].pairs_answered, 15u);
    EXPECT_EQ(workers[0].first_seen_s, 50);
    EXPECT_EQ(workers[0].last_seen_s, 60);

    const auto minutes = hub->history(0);
    ASSERT_EQ(minutes.size(), 1u) << "a week is kept";
    EXPECT_EQ(minutes[0].answer_tokens, 8u);
    EXPECT_EQ(minutes[0].answers, 3u);
    EXPECT_EQ(minutes[0].call_p99_us, 50u);
    EXPECT_EQ(minutes[0].call_p999_us, 90u);
    EXPECT_EQ(minutes[0].workers, 4u);
    EXPECT_EQ(minutes[0].covered, 7u);
    EXPECT_TRUE(hub->history(now_s + 60).empty());
}

TEST_P(StoreTest, ContributorsAreRankedAndForgottenWithTheirDays) {
    PublicKey ada, bob;
    ada.fill(std::byte{1});
    bob.fill(std::byte{0xfe});
    const std::int64_t now_s = std::time(nullptr);
    const auto hub = open();
    hub->add_work({100, 60});
    hub->add_contribution(ada, "Ada", {10, 5});
    hub->flush();
    hub->add_contribution(ada, "Ada", {20, 10});
    hub->add_contribution(bob, "", {40, 0});
    hub->flush();

    Contributions found = hub->contributions(ada, now_s);
    EXPECT_EQ(found.contributors, 2u);
    EXPECT_EQ(found.today, (LentWork{100, 60}));
    ASSERT_EQ(found.board.size(), 2u);
    EXPECT_EQ(found.board[0].pairs, 40u);
    EXPECT_TRUE(found.board[1].is_mine);
    ASSERT_TRUE(found.mine);
    EXPECT_EQ(LentWork(*found.mine), (LentWork{30, 15}));
    EXPECT_EQ(found.mine->days.size(), 1u);

    ASSERT_TRUE(hub->forget_contributor(ada).ok());
    EXPECT_FALSE(hub->contributions(ada, now_s).mine);
    hub->add_contribution(ada, "", {1, 0});
    hub->flush();
    EXPECT_EQ(LentWork(*hub->contributions(ada, now_s).mine), (LentWork{1, 0}));
    EXPECT_EQ(hub->contributions(ada, now_s).mine->days.size(), 1u);
}

TEST_P(StoreTest, BansGetLongerAndAreLiftedByTheirBeginning) {
    const std::int64_t now_s = std::time(nullptr);
    const auto hub = open();
    BanBook& bans = hub->bans();
    std::int64_t wanted = 600;
    for (std::uint32_t times = 1; times <= 8; ++times) {
        EXPECT_EQ(must(bans.add("abcd", "Ada", "3 answers", now_s + times)).times, times);
        EXPECT_EQ(bans.left_s("abcd", now_s + times), wanted) << times;
        wanted *= 2;
    }
    ASSERT_TRUE(bans.add("abce", "", "order", now_s, 90 * 86'400).ok());
    ASSERT_TRUE(bans.add("x%_", "", "", now_s).ok());
    EXPECT_EQ(bans.left_s("abce", now_s), 90 * 86'400);
    ASSERT_EQ(bans.list().size(), 3u);
    EXPECT_EQ(bans.list()[0].worker_key, "abcd");

    const auto beside = open("other");
    EXPECT_EQ(bans.lift("abc").error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(bans.lift("%").error().code, ErrorCode::not_found);
    EXPECT_EQ(bans.lift("").error().code, ErrorCode::not_found);
    ASSERT_TRUE(bans.lift("abcd").ok());
    EXPECT_EQ(bans.left_s("abcd", now_s), 0);
    EXPECT_EQ(must(bans.add("abcd", "", "", now_s + 20)).times, 1u) << "lifted is forgiven";
}

TEST_P(StoreTest, ABanOfOneHubHoldsAtAnotherAndIsLiftedThere) {
    const std::int64_t now_s = std::time(nullptr);
    const auto hub = open("one"), beside = open("other");
    Watch watch(*hub), watch_beside(*beside);
    ASSERT_TRUE(beside->bans().add("liar", "Ada", "wrong answers", now_s).ok());
    EXPECT_TRUE(watch.until([&] { return hub->bans().left_s("liar", now_s) == 600; }));
    EXPECT_EQ(hub->bans().list().size(), 1u);
    ASSERT_TRUE(hub->bans().lift("liar").ok());
    EXPECT_TRUE(watch_beside.until([&] { return beside->bans().left_s("liar", now_s) == 0; }));
}

}  // namespace
}  // namespace moex
