// Tests of a store that several hubs share: it goes away and comes back, hubs enter and leave, and
// its address is checked.
#include <gtest/gtest.h>

#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>

#include "hub/registry/postgres_store.h"
#include "hub/registry/registry.h"
#include "tests/support/must.h"
#include "tests/support/postgres_server.h"
#include "tests/support/wait_until.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
using test::must;
using test::PostgresServer;
using test::wait_until;

class SharedStoreTest : public testing::Test {
  protected:
    SharedStoreTest() {
        std::string pattern = (fs::temp_directory_path() / "moex-shared-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        root_ = pattern;
    }
    ~SharedStoreTest() override { fs::remove_all(root_); }
    void SetUp() override {
        if (!PostgresServer::is_installed()) GTEST_SKIP() << "SKIPPED: no postgresql-15";
        server_ = std::make_unique<PostgresServer>();
    }
    std::unique_ptr<Registry> open(const std::string& name,
                                   Duration keys_good_for = std::chrono::minutes(15)) {
        return must(Registry::open(
            {.directory = root_ / name, .url = server_->url(), .keys_good_for = keys_good_for}));
    }
    static TokenUse use_of(const Registry& registry) {
        TokenUse sum;
        for (const TokenUseOfDay& day : registry.token_use()) {
            sum.requests += day.requests;
            sum.answer_tokens += day.answer_tokens;
        }
        return sum;
    }

    fs::path root_;
    std::unique_ptr<PostgresServer> server_;
};

TEST_F(SharedStoreTest, AStoreThatIsAwayHoldsNothingUpAndLosesNothing) {
    const auto hub = open("one");
    const MadeKey made = must(hub->make_key({.name = "ada"}));
    ASSERT_TRUE(hub->bans().add("liar", "", "before", std::time(nullptr)).ok());
    hub->flush();
    hub->add_token_use(made.info.id, {.requests = 1, .answer_tokens = 10});
    server_->stop();
    wait_until([&] { return hub->store_is_away(); });

    EXPECT_TRUE(hub->find_key(made.key)) << "keys that are known stay in use";
    EXPECT_GT(hub->bans().left_s("liar", std::time(nullptr)), 0);
    ASSERT_TRUE(hub->bans().add("another liar", "", "away", std::time(nullptr)).ok());
    EXPECT_GT(hub->bans().left_s("another liar", std::time(nullptr)), 0);
    for (int i = 0; i < 100; ++i)
        hub->add_token_use(made.info.id, {.requests = 1, .answer_tokens = 1});
    const TimePoint asked = now_steady();
    EXPECT_EQ(hub->make_key({.name = "bob"}).error().code, ErrorCode::unavailable);
    EXPECT_EQ(hub->revoke_key("ada").error().code, ErrorCode::unavailable);
    EXPECT_EQ(hub->rotate_join_token().error().code, ErrorCode::unavailable);
    EXPECT_EQ(hub->bans().lift("liar").error().code, ErrorCode::unavailable);
    EXPECT_TRUE(hub->token_use().empty());
    EXPECT_LT(now_steady() - asked, 1s) << "refused at once";

    server_->start();
    wait_until([&] { return !hub->store_is_away(); });
    EXPECT_EQ(use_of(*hub).answer_tokens, 110u);
    EXPECT_EQ(use_of(*hub).requests, 101u);
    wait_until([&] { return open("two")->bans().list().size() == 2; });
    EXPECT_TRUE(hub->make_key({.name = "bob"}).ok());
}

// The server is killed while batches are written: whatever moment it hits, every count is written
// once.
TEST_F(SharedStoreTest, AServerThatIsKilledLosesNoCountAndCountsNoneTwice) {
    const auto hub = open("one");
    std::uint64_t added = 0;
    for (int round = 0; round < 6; ++round) {
        std::atomic<bool> is_killed{false};
        std::thread killer([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(13 * (round + 1)));
            server_->stop();
            is_killed = true;
        });
        while (!is_killed) {
            hub->add_token_use("1a2b3c4d", {.answer_tokens = 1});
            ++added;
            hub->flush();
        }
        killer.join();
        server_->start();
        wait_until([&] { return !hub->store_is_away() && !hub->token_use().empty(); });
    }
    hub->flush();
    EXPECT_EQ(use_of(*hub).answer_tokens, added);
}

// The commit had arrived and its answer was lost: the same batch under the same number.
TEST_F(SharedStoreTest, ABatchIsWrittenOnce) {
    const auto store = must(PostgresStore::open(must(PostgresAddress::parse(server_->url()))));
    const auto session = must(store->session());
    for (const bool is_new : {true, false}) {
        Transaction transaction(*session);
        EXPECT_EQ(must(store->begin_batch(*session, 7)), is_new);
        ASSERT_TRUE(transaction.commit().ok());
    }
    EXPECT_FALSE(must(store->begin_batch(*session, 6)));
    EXPECT_TRUE(must(store->begin_batch(*session, 8)));
}

TEST_F(SharedStoreTest, AMachineThatHangsIsAStoreThatIsAway) {
    const auto hub = open("one");
    const MadeKey made = must(hub->make_key({.name = "ada"}));
    server_->freeze(true);
    wait_until([&] { return hub->store_is_away(); });
    EXPECT_TRUE(hub->find_key(made.key));
    EXPECT_EQ(hub->make_key({.name = "bob"}).error().code, ErrorCode::unavailable);
    server_->freeze(false);
    wait_until([&] { return hub->make_key({.name = "bob"}).ok(); });
}

TEST_F(SharedStoreTest, KeysOfAStoreThatIsAwayEndAfterTheirTime) {
    const auto hub = open("one", 0s), other = open("two");
    const MadeKey made = must(other->make_key({.name = "ada"}));
    EXPECT_FALSE(hub->find_key(made.key));
    EXPECT_FALSE(hub->key_opens(made.info.id));
    EXPECT_FALSE(hub->join_allowed(must(other->join_token())));
    EXPECT_TRUE(other->find_key(made.key));
}

// Keys that are known stay in use for a time while the store is away, and again once it is back.
TEST_F(SharedStoreTest, KeysAreGoodForATimeAfterTheStoreWentAway) {
    const auto hub = open("one", 500ms);
    const MadeKey made = must(hub->make_key({.name = "ada"}));
    const std::string link = must(hub->join_token());
    wait_until([&] { return hub->find_key(made.key).has_value(); });
    server_->stop();
    wait_until([&] { return hub->store_is_away(); });
    wait_until([&] { return !hub->find_key(made.key); });
    EXPECT_FALSE(hub->key_opens(made.info.id));
    EXPECT_FALSE(hub->join_allowed(link));
    server_->start();
    wait_until([&] { return hub->find_key(made.key) && hub->join_allowed(link); });
}

// A store that lost its tables must not look like one whose keys were all revoked, nor like one
// that is there: its keys would stay good for ever.
TEST_F(SharedStoreTest, AWipedStoreIsLikeOneThatIsAwayAndIsTold) {
    const auto hub = open("one"), brief = open("brief", 500ms);
    const MadeKey made = must(hub->make_key({.name = "ada"}));
    wait_until([&] { return brief->find_key(made.key).has_value(); });
    hub->add_token_use(made.info.id, {.requests = 1});
    hub->flush();
    const auto wipe = [&](const std::string& sql) {
        const auto store = must(PostgresStore::open(must(PostgresAddress::parse(server_->url()))));
        ASSERT_TRUE((*must(store->session())).execute(sql).ok()) << sql;
    };
    EXPECT_FALSE(hub->store_is_wiped());
    wipe("ALTER TABLE store_identity RENAME TO hidden");
    wait_until([&] { return hub->store_is_wiped(); });
    EXPECT_TRUE(hub->store_is_away());
    EXPECT_TRUE(hub->find_key(made.key)) << "for 15 minutes more";
    EXPECT_EQ(hub->make_key({.name = "bob"}).error().code, ErrorCode::unavailable);
    hub->add_token_use(made.info.id, {.requests = 1});
    wait_until([&] { return !brief->find_key(made.key); });

    // The tables are back, and what waited is written.
    {
        const auto database = must(
            PostgresDatabase::connect(must(PostgresAddress::parse(server_->url()))));
        ASSERT_TRUE(database->execute("ALTER TABLE hidden RENAME TO store_identity").ok());
    }
    wait_until([&] { return !hub->store_is_wiped() && !hub->store_is_away(); });
    wait_until([&] { return brief->find_key(made.key).has_value(); });
    EXPECT_EQ(use_of(*hub).requests, 2u);

    // Another hub has made the tables anew: this is another store.
    wipe("DROP SCHEMA public CASCADE; CREATE SCHEMA public");
    const auto other = open("two");
    wait_until([&] { return hub->store_is_wiped(); });
    EXPECT_TRUE(other->make_key({.name = "eve"}).ok());
    EXPECT_FALSE(other->find_key(made.key));
    EXPECT_EQ(hub->make_key({.name = "bob"}).error().code, ErrorCode::unavailable);
}

// What went wrong says nothing about the store, which still has its tables.
TEST_F(SharedStoreTest, AnErrorOfAnotherKindIsAStoreThatIsAway) {
    const auto hub = open("one");
    const MadeKey made = must(hub->make_key({.name = "ada"}));
    const auto database = must(
        PostgresDatabase::connect(must(PostgresAddress::parse(server_->url()))));
    ASSERT_TRUE(database->execute("ALTER TABLE store_identity RENAME COLUMN id TO other").ok());
    wait_until([&] { return hub->store_is_away(); });
    EXPECT_FALSE(hub->store_is_wiped());
    EXPECT_TRUE(hub->find_key(made.key));
    EXPECT_EQ(hub->make_key({.name = "bob"}).error().code, ErrorCode::unavailable);
    ASSERT_TRUE(database->execute("ALTER TABLE store_identity RENAME COLUMN other TO id").ok());
    wait_until([&] { return !hub->store_is_away(); });
    EXPECT_TRUE(hub->make_key({.name = "bob"}).ok());
}

TEST_F(SharedStoreTest, AWorkersRecordIsReadByTheHubThatItJoins) {
    const auto one = open("one"), two = open("two");
    EXPECT_EQ(must(one->worker_trust("w")), WorkerTrust{});
    WorkerTrust learned{.rows_answered = 10,
                        .rows_verified = 8,
                        .answers_verified = 6,
                        .rows_verified_ever = 8,
                        .seen_s = 50};
    one->add_worker_trust("w", learned);
    one->add_worker_trust("w", learned);
    EXPECT_EQ(must(one->worker_trust("w")).rows_answered, 20u) << "what waits is written first";
    WorkerTrust sum = must(two->worker_trust("w"));
    EXPECT_EQ(sum.rows_verified_ever, 16u);

    // A suspicion takes the counts back, in one batch as over several.
    const WorkerTrust lie{.rows_answered = 1,
                          .lies = 1,
                          .times_suspected = 1,
                          .suspected = true,
                          .lied_s = 70,
                          .seen_s = 60};
    for (const bool at_once : {true, false}) {
        for (const WorkerTrust& next : {learned, lie, learned}) {
            two->add_worker_trust("w", next);
            sum += next;
            if (!at_once) two->flush();
        }
        two->flush();
        EXPECT_EQ(must(one->worker_trust("w")), sum);
        EXPECT_EQ(sum.rows_answered, 11u);
    }
    EXPECT_EQ(sum.lies, 2);
    EXPECT_EQ(sum.rows_verified_ever, 48u);
    EXPECT_EQ(sum.lied_s, 70);
    EXPECT_FALSE(sum.suspected);
    EXPECT_EQ(must(one->worker_trust("another")), WorkerTrust{});

    // Several hubs forget the same lies, in one batch and in several; a later lie counts.
    const WorkerTrust forgotten{.lies = -1};
    for (const char* key : {"w", "unknown"}) {
        for (int i = 0; i < 2; ++i) {
            one->add_worker_trust(key, forgotten);
            two->add_worker_trust(key, forgotten);
        }
        one->flush();
        two->flush();
        EXPECT_EQ(must(one->worker_trust(key)).lies, 0) << key;
        two->add_worker_trust(key, lie);
        EXPECT_EQ(must(two->worker_trust(key)).lies, 1) << key;
        one->add_worker_trust(key, forgotten);
        EXPECT_EQ(must(one->worker_trust(key)).lies, 0) << "a difference alone in its batch";
    }

    server_->stop();
    wait_until([&] { return one->store_is_away(); });
    EXPECT_EQ(one->worker_trust("w").error().code, ErrorCode::unavailable);
}

TEST_F(SharedStoreTest, HubsEnterRenewAndAreFenced) {
    const auto hub = open("one"), other = open("two");
    Membership& members = *hub->membership();
    const Member one{.hub_id = "aaaaaaaa",
                     .address = "http://one",
                     .model = "m",
                     .workers = 3,
                     .units = 96,
                     .missing = 5,
                     .thin = 7};
    const std::int64_t first = must(members.enter(one, 60s));
    const auto listed = must(other->membership()->watch());
    ASSERT_EQ(listed.size(), 1u);
    EXPECT_EQ(listed[0].address, "http://one");
    EXPECT_EQ(listed[0].workers, 3u);
    EXPECT_EQ(listed[0].units, 96u);
    EXPECT_EQ(listed[0].missing, 5u);
    EXPECT_EQ(listed[0].thin, 7u);
    EXPECT_GT(listed[0].left_ms, 50'000);
    EXPECT_LE(listed[0].left_ms, 60'000);

    const std::int64_t second = must(other->membership()->enter(one, 60s));
    EXPECT_GT(second, first);
    EXPECT_FALSE(must(members.fence("aaaaaaaa", first)));
    EXPECT_TRUE(must(members.fence("aaaaaaaa", second)));
    Member late = one;
    late.fence = first;
    EXPECT_EQ(members.renew(late, 60s).error().code, ErrorCode::cancelled);
    late.fence = second;
    late.missing = 0;
    late.thin = 12;
    EXPECT_TRUE(members.renew(late, 0s).ok());
    EXPECT_LE(must(members.watch())[0].left_ms, 0);
    EXPECT_EQ(must(members.watch())[0].missing, 0u);
    EXPECT_EQ(must(members.watch())[0].thin, 12u);
    late.hub_id = "bbbbbbbb";
    EXPECT_EQ(members.renew(late, 60s).error().code, ErrorCode::not_found);
}

TEST_F(SharedStoreTest, AHubKeepsItsLeaseAndEntersAgainWhenItsRowIsGone) {
    const auto hub = open("one"), other = open("two");
    ASSERT_TRUE(hub->join_fleet([] { return Member{.hub_id = "aaaaaaaa"}; }).ok());
    const auto left_ms = [&] {
        const auto members = other->membership()->watch();
        return members.ok() && members->size() == 1 ? members->front().left_ms : -1;
    };
    EXPECT_GT(left_ms(), 0);
    const std::int64_t first = must(other->membership()->watch())[0].fence;
    {
        const auto store = must(PostgresStore::open(must(PostgresAddress::parse(server_->url()))));
        const auto session = must(store->session());
        ASSERT_TRUE((*session).execute("DELETE FROM hubs").ok());
    }
    wait_until([&] { return left_ms() > 0; });
    EXPECT_GT(must(other->membership()->watch())[0].fence, first);

    const auto fleet = hub->fleet();
    EXPECT_EQ(fleet->self.hub_id, "aaaaaaaa");
    ASSERT_EQ(fleet->members.size(), 1u);
    EXPECT_TRUE(other->fleet()->self.hub_id.empty()) << "it has not entered";

    // The hub tells which keys it uses, so that `key revoke` can wait for it.
    ASSERT_TRUE(other->make_key({.name = "ada"}).ok());
    EXPECT_TRUE(other->wait_until_seen(60s));
    hub->leave_fleet();
    EXPECT_LE(left_ms(), 0);
}

// Who acts on the members must know when they are old.
TEST_F(SharedStoreTest, AViewIsFreshForALeaseAndUntilAnotherProcessEnters) {
    const auto hub = open("one"), other = open("two");
    EXPECT_FALSE(hub->fleet()->is_fresh(now_steady())) << "it has not entered";
    const TimePoint before = now_steady();
    ASSERT_TRUE(hub->join_fleet([] { return Member{.hub_id = "aaaaaaaa"}; }).ok());
    const auto first = hub->fleet();
    EXPECT_TRUE(first->is_fresh(before + 8s));
    EXPECT_FALSE(first->is_fresh(now_steady() + 9s));
    wait_until([&] { return hub->fleet()->fresh_until > first->fresh_until; });

    ASSERT_TRUE(other->membership()->enter({.hub_id = "aaaaaaaa"}, 60s).ok());
    const auto last = hub->fleet();
    const TimePoint entered = now_steady();
    wait_until([&] { return !hub->fleet()->is_fresh(entered); });
    EXPECT_EQ(hub->fleet()->self.hub_id, "aaaaaaaa") << "pages still show it";
    EXPECT_EQ(hub->fleet()->members.size(), last->members.size());
}

TEST_F(SharedStoreTest, ALimitHoldsOverAllHubs) {
    constexpr std::uint64_t per_minute = 60'000, asked = 500;
    const auto one = open("one"), two = open("two");
    const TimePoint begin = now_steady();
    std::atomic<std::uint64_t> granted{0}, refused{0};
    std::vector<std::thread> clients;
    for (Registry* hub : {one.get(), two.get(), one.get(), two.get()})
        clients.emplace_back([&, hub] {
            for (int i = 0; i < 100; ++i) {
                const TokenReservation taken = must(hub->reserve_tokens("ada", per_minute, asked));
                granted += taken.tokens;
                if (taken.wait > 0s) {
                    ++refused;
                    EXPECT_EQ(taken.tokens, 0u);
                    EXPECT_LE(taken.wait, 500ms) << "a minute has 120 such requests";
                }
            }
        });
    for (std::thread& client : clients) client.join();
    const double seconds = std::chrono::duration<double>(now_steady() - begin).count();
    EXPECT_GT(refused, 0u);
    EXPECT_GE(granted, per_minute) << "a full bucket at the beginning";
    EXPECT_LE(static_cast<double>(granted), per_minute * (1 + seconds / 60));

    // What one hub returns, another may take; another key has a limit of its own.
    EXPECT_GT(must(two->reserve_tokens("ada", per_minute, per_minute)).wait, 0s);
    one->settle_tokens("ada", granted, 0);
    one->flush();
    EXPECT_EQ(must(two->reserve_tokens("ada", per_minute, 2 * per_minute)).tokens, per_minute);
    EXPECT_EQ(must(two->reserve_tokens("bob", 10, 20)).tokens, 10u);
    const Duration wait = must(two->reserve_tokens("bob", 10, 20)).wait;
    EXPECT_GT(wait, 55s);
    EXPECT_LE(wait, 60s);
}

TEST_F(SharedStoreTest, ANewerSchemaIsRefusedByNumber) {
    {
        const auto hub = open("one");
        const auto store = must(PostgresStore::open(must(PostgresAddress::parse(server_->url()))));
        ASSERT_TRUE((*must(store->session())).set_schema_version(99, "0099_new").ok());
    }
    const auto opened = Registry::open({.directory = root_ / "two", .url = server_->url()});
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("schema version 99"), std::string::npos)
        << opened.error().message;
}

TEST(PostgresAddressTest, PasswordsAndUnverifiedHostsAreRefusedByName) {
    const auto refused = [](const std::string& url) {
        const auto parsed = PostgresAddress::parse(url);
        return parsed.ok() ? "accepted" : parsed.error().message;
    };
    for (const char* url :
         {"postgresql://moex:secret@db/moex", "postgresql://db/moex?password=secret",
          "postgresql://moex:@db:5432/moex?password=secret"}) {
        EXPECT_NE(refused(url).find("PGPASSFILE"), std::string::npos) << refused(url);
        EXPECT_EQ(refused(url).find("secret"), std::string::npos) << refused(url);
    }
    EXPECT_NE(refused("postgresql://db/moex?sslmode=require").find("sslmode require"),
              std::string::npos);
    EXPECT_NE(refused("postgresql://localhost,db/moex?sslmode=prefer").find("sslmode prefer"),
              std::string::npos);
    EXPECT_NE(refused("postgresql://db/moex?service=x").find("service"), std::string::npos);
    EXPECT_NE(refused("postgresql://db/").find("no database"), std::string::npos);
    EXPECT_NE(refused("mysql://db/moex").find("postgresql://HOST/DATABASE"), std::string::npos);
    EXPECT_NE(refused("postgresql://[::1/moex").find("cannot read"), std::string::npos);
}

TEST(PostgresAddressTest, AHostBeyondThisMachineIsVerified) {
    const auto mode_of = [](const std::string& url) {
        const PostgresAddress address = must(PostgresAddress::parse(url));
        for (const auto& [name, value] : address.parameters())
            if (name == "sslmode") return value;
        return std::string("none");
    };
    EXPECT_EQ(mode_of("postgresql://db.example/moex"), "verify-full");
    EXPECT_EQ(mode_of("postgresql://moex@localhost,db.example/moex"), "verify-full");
    EXPECT_EQ(mode_of("postgresql://127.0.0.1:5433/moex"), "none");
    EXPECT_EQ(mode_of("postgresql://[::1]/moex"), "none");
    EXPECT_EQ(mode_of("postgresql://%2Frun%2Fpostgresql/moex"), "none");
    EXPECT_EQ(mode_of("postgresql:///moex"), "none");
}

}  // namespace
}  // namespace moex
