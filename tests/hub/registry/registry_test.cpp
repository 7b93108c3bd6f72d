// Tests of the registry: keys, permissions, counters, and the state after kill -9.
#include "hub/registry/registry.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>

#include "hub/base/sha256.h"
#include "hub/registry/migrations.h"
#include "hub/registry/sqlite_database.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

class RegistryTest : public testing::Test {
  protected:
    RegistryTest() {
        std::string pattern = (fs::temp_directory_path() / "moex-registry-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        root_ = pattern;
        state_ = root_ / "state";
    }
    ~RegistryTest() override { fs::remove_all(root_); }
    std::unique_ptr<Registry> open() {
        auto opened = Registry::open(state_);
        EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
        return opened.ok() ? std::move(opened).value() : nullptr;
    }
    static unsigned mode_of(const fs::path& path) {
        struct stat info {};
        return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
    }
    fs::path root_, state_;
};

TEST_F(RegistryTest, FilesBelongToTheUserAlone) {
    auto registry = open();
    ASSERT_TRUE(registry->join_token().ok());
    ASSERT_TRUE(registry->create_key(Role::api, "first").ok());
    EXPECT_EQ(mode_of(state_), 0700u);
    for (const auto& entry : fs::directory_iterator(state_))
        EXPECT_EQ(mode_of(entry.path()), 0600u) << entry.path();
}

TEST_F(RegistryTest, AFolderOfOthersIsRefused) {
    fs::create_directories(state_);
    fs::permissions(state_, fs::perms(0755));
    std::ofstream(state_ / "letters.txt") << "private";
    const auto opened = Registry::open(state_);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("holds other files"), std::string::npos)
        << opened.error().message;
}

TEST_F(RegistryTest, AKeyThatIsSetEndsTheOneBeforeIt) {
    const std::string before = "the token of yesterday", after = "the token of today!";
    {
        const auto registry = open();
        ASSERT_TRUE(registry->set_key(Role::join, "link", before).ok());
        ASSERT_TRUE(registry->add_key(Role::join, "another", "kept, it has another name").ok());
        EXPECT_EQ(registry->key_role(before), Role::join);
        ASSERT_TRUE(registry->set_key(Role::join, "link", after).ok());
        EXPECT_EQ(registry->key_role(before), std::nullopt);
    }

    const auto registry = open();
    EXPECT_EQ(registry->key_role(before), std::nullopt);
    EXPECT_EQ(registry->key_role(after), Role::join);
    EXPECT_EQ(registry->key_role("kept, it has another name"), Role::join);
}

TEST_F(RegistryTest, KeysSurviveAReopenAndOnlyTheirHashIsStored) {
    std::string api, admin, token;
    {
        auto registry = open();
        EXPECT_FALSE(registry->has_key(Role::api));
        api = registry->create_key(Role::api, "app").value();
        admin = registry->create_key(Role::admin, "host").value();
        token = registry->join_token().value();
        ASSERT_TRUE(registry->add_key(Role::api, "own", "a key that the host chose").ok());
        EXPECT_FALSE(registry->add_key(Role::api, "short", "tiny").ok());
    }

    auto registry = open();
    EXPECT_EQ(registry->key_role(api), Role::api);
    EXPECT_EQ(registry->key_role(admin), Role::admin);
    EXPECT_EQ(registry->key_role("a key that the host chose"), Role::api);
    EXPECT_EQ(registry->key_role(""), std::nullopt);
    EXPECT_EQ(registry->key_role(api + "x"), std::nullopt);
    EXPECT_EQ(registry->join_token().value(), token);

    EXPECT_TRUE(registry->join_allowed(token));
    EXPECT_TRUE(registry->join_allowed(admin));
    EXPECT_FALSE(registry->join_allowed(api));
    EXPECT_FALSE(registry->join_allowed(""));

    for (const auto& entry : fs::directory_iterator(state_)) {
        std::ifstream in(entry.path(), std::ios::binary);
        const std::string content{std::istreambuf_iterator<char>(in), {}};
        EXPECT_EQ(content.find(api), std::string::npos) << entry.path();
        EXPECT_EQ(content.find("a key that the host chose"), std::string::npos) << entry.path();
    }
}

TEST_F(RegistryTest, ARevokedKeyOpensNothingAndStaysInTheList) {
    auto registry = open();
    const MadeKey made =
        registry->make_key({.role = Role::api, .name = "ada", .tokens_per_minute = 500}).value();
    EXPECT_EQ(made.info.id, to_hex(sha256(as_byte_view(made.key))).substr(0, 8));
    EXPECT_EQ(registry->find_key(made.key)->tokens_per_minute, 500u);
    EXPECT_TRUE(registry->key_opens(made.info.id));

    EXPECT_FALSE(registry->revoke_key("bob").ok());
    ASSERT_TRUE(registry->revoke_key("ada").ok());
    EXPECT_FALSE(registry->revoke_key("ada").ok());
    EXPECT_FALSE(registry->find_key(made.key));
    EXPECT_FALSE(registry->has_key(Role::api));

    registry.reset();
    registry = open();
    EXPECT_FALSE(registry->find_key(made.key));
    ASSERT_EQ(registry->keys().size(), 1u);
    EXPECT_GT(registry->keys()[0].revoked_s, 0);
}

TEST_F(RegistryTest, ANameOfTwoKeysAsksForTheId) {
    const auto registry = open();
    const MadeKey first = registry->make_key({.name = "app"}).value(),
                  second = registry->make_key({.name = "app"}).value();
    const auto both = registry->revoke_key("app");
    ASSERT_FALSE(both.ok());
    EXPECT_EQ(both.error().code, ErrorCode::invalid_argument);
    ASSERT_TRUE(registry->revoke_key(second.info.id).ok());
    EXPECT_TRUE(registry->key_opens(first.info.id));
    EXPECT_FALSE(registry->key_opens(second.info.id));
}

TEST_F(RegistryTest, NamesOfKeysAreWordsForLists) {
    const auto registry = open();
    for (const std::string& name : {std::string(), std::string("a\nb"), std::string(65, 'x'),
                                    std::string(join_link_name), std::string(host_key_name)})
        EXPECT_FALSE(registry->make_key({.name = name}).ok()) << name;
    EXPECT_TRUE(registry->make_key({.name = "Ada's Laptop, \xc3\xa9"}).ok());
}

TEST_F(RegistryTest, AnExpiredKeyOpensNothing) {
    const auto registry = open();
    const std::int64_t now_s = std::time(nullptr);
    EXPECT_FALSE(registry->find_key(
        registry->make_key({.name = "old", .expires_s = now_s - 1}).value().key));
    EXPECT_TRUE(registry->find_key(
        registry->make_key({.name = "new", .expires_s = now_s + 3600}).value().key));
}

TEST_F(RegistryTest, ChangesOfKeysByAnotherProcessAreReported) {
    const auto hub = open(), beside = open();
    std::mutex mutex;
    std::condition_variable wake;
    int changes = 0;
    hub->watch_keys([&] {
        const std::lock_guard lock(mutex);
        ++changes;
        wake.notify_all();
    });
    const auto wait_for = [&](auto happened) {
        std::unique_lock lock(mutex);
        return wake.wait_for(lock, std::chrono::seconds(60), happened);
    };

    const MadeKey made = beside->make_key({.name = "ada"}).value();
    EXPECT_TRUE(wait_for([&] { return hub->find_key(made.key).has_value(); }));
    ASSERT_TRUE(beside->revoke_key("ada").ok());
    EXPECT_TRUE(wait_for([&] { return !hub->find_key(made.key).has_value(); }));
    EXPECT_GE(changes, 2);
    hub->watch_keys(nullptr);
}

TEST_F(RegistryTest, ARotatedJoinTokenEndsTheFormerOneInEveryProcess) {
    const auto hub = open(), beside = open();
    const std::string before = hub->join_token().value();
    ASSERT_TRUE(hub->set_key(Role::join, join_link_name, before).ok());
    std::mutex mutex;
    std::condition_variable wake;
    hub->watch_keys([&] {
        const std::lock_guard lock(mutex);
        wake.notify_all();
    });

    ASSERT_TRUE(beside->revoke_key(join_link_name).ok());
    const std::string after = beside->join_token().value();
    EXPECT_NE(before, after);
    std::unique_lock lock(mutex);
    EXPECT_TRUE(
        wake.wait_for(lock, std::chrono::seconds(60), [&] { return hub->join_allowed(after); }));
    EXPECT_FALSE(hub->join_allowed(before));
    EXPECT_EQ(hub->join_token().value(), after);
    lock.unlock();
    hub->watch_keys(nullptr);
}

TEST_F(RegistryTest, TokenUseAddsUpByKeyAndDay) {
    {
        const auto registry = open();
        registry->add_token_use("1a2b3c4d", {.requests = 1, .prompt_tokens = 5});
        registry->add_token_use("1a2b3c4d", {.answer_tokens = 2});
        registry->add_token_use(local_key_id, {.requests = 1, .answer_tokens = 9});
    }
    const auto registry = open();
    registry->add_token_use("1a2b3c4d", {.answer_tokens = 3});
    std::map<std::string, TokenUse> sums;  // the test may run over midnight
    for (const TokenUseOfDay& day : registry->token_use()) {
        EXPECT_EQ(day.day_s % 86'400, 0);
        sums[day.key_id].requests += day.requests;
        sums[day.key_id].prompt_tokens += day.prompt_tokens;
        sums[day.key_id].answer_tokens += day.answer_tokens;
    }
    EXPECT_EQ(sums["1a2b3c4d"].requests, 1u);
    EXPECT_EQ(sums["1a2b3c4d"].prompt_tokens, 5u);
    EXPECT_EQ(sums["1a2b3c4d"].answer_tokens, 5u);
    EXPECT_EQ(sums[local_key_id].answer_tokens, 9u);
}

TEST_F(RegistryTest, MinutesAddUpAndAWeekIsKept) {
    constexpr std::int64_t now_s = 1'800'000'000 - 1'800'000'000 % 60, day_s = 86'400;
    {
        const auto registry = open();
        registry->record_minute({.minute_s = now_s - 8 * day_s, .answer_tokens = 1});
        registry->record_minute({.minute_s = now_s - 6 * day_s, .answer_tokens = 2});
        registry->record_minute({.minute_s = now_s,
                                 .answer_tokens = 3,
                                 .answers = 1,
                                 .call_p99_us = 50,
                                 .call_p999_us = 70,
                                 .workers = 4,
                                 .covered = 9,
                                 .units = 10});
    }
    // Record the same minute again, as a hub does that was restarted within this minute.
    const auto registry = open();
    registry->record_minute({.minute_s = now_s,
                             .answer_tokens = 5,
                             .answers = 2,
                             .call_p99_us = 20,
                             .call_p999_us = 90,
                             .workers = 1,
                             .covered = 7,
                             .units = 10});
    const auto minutes = registry->history(0);
    ASSERT_EQ(minutes.size(), 2u);
    EXPECT_EQ(minutes[0].answer_tokens, 2u);
    EXPECT_EQ(minutes[1].answer_tokens, 8u);
    EXPECT_EQ(minutes[1].answers, 3u);
    EXPECT_EQ(minutes[1].call_p99_us, 50u);
    EXPECT_EQ(minutes[1].call_p999_us, 90u);
    EXPECT_EQ(minutes[0].call_p999_us, 0u);
    EXPECT_EQ(minutes[1].workers, 4u);
    EXPECT_EQ(minutes[1].covered, 7u);
    EXPECT_EQ(registry->history(now_s).size(), 1u);
}

TEST_F(RegistryTest, AClaimOpensOnceAndItsKeyEndsTheOneBefore) {
    const auto registry = open();
    const std::string token = registry->make_claim().value();
    EXPECT_FALSE(registry->take_claim("something else"));
    EXPECT_TRUE(registry->take_claim(token));
    EXPECT_FALSE(registry->take_claim(token));

    const std::string first = registry->make_claimed_key().value().key;
    EXPECT_EQ(registry->key_role(first), Role::admin);
    EXPECT_FALSE(registry->has_key(Role::admin));  // the key of a one-time link does not count
    const std::string second = registry->make_claimed_key().value().key;
    EXPECT_FALSE(registry->key_role(first));
    EXPECT_EQ(registry->key_role(second), Role::admin);
}

TEST_F(RegistryTest, CountersAndWorkersAddUp) {
    {
        auto registry = open();
        registry->add_to_counter("calls", 3);
        registry->add_to_counter("calls", 4);
        registry->record_worker({"w1", "ada", "GPU", 10, 100, 1, 50, 60});
        registry->record_worker({"", "nobody", "", 10, 100, 1, 50, 60});
    }

    auto registry = open();
    registry->add_to_counter("calls", 5);
    registry->record_worker({"w1", "ada l.", "GPU", 5, 50, 0, 70, 80});
    const auto counters = registry->counters();
    ASSERT_EQ(counters.size(), 1u);
    EXPECT_EQ(counters[0], (std::pair<std::string, std::uint64_t>("calls", 12)));
    const auto workers = registry->workers();

    ASSERT_EQ(workers.size(), 1u);
    EXPECT_EQ(workers[0].nickname, "ada l.");
    EXPECT_EQ(workers[0].pairs_answered, 15u);
    EXPECT_EQ(workers[0].bytes_sent, 150u);
    EXPECT_EQ(workers[0].first_seen_s, 50);
    EXPECT_EQ(workers[0].last_seen_s, 80);
}

TEST_F(RegistryTest, ANewerSchemaIsRefusedByNumber) {
    open();
    sqlite3* raw = nullptr;
    ASSERT_EQ(sqlite3_open((state_ / "moex.sqlite").c_str(), &raw), SQLITE_OK);
    sqlite3_exec(raw, "PRAGMA user_version=99", nullptr, nullptr, nullptr);
    sqlite3_close(raw);
    const auto opened = Registry::open(state_);
    ASSERT_FALSE(opened.ok());

    EXPECT_NE(opened.error().message.find("schema version 99"), std::string::npos)
        << opened.error().message;
}

// `serve --require-key` of commit fe02fab wrote tests/golden/registry/version1.sqlite, before there
// were migrations; the one worker in the file was added by hand.
TEST_F(RegistryTest, ADatabaseOfVersion1IsUpgradedAndKeepsWhatItHeld) {
    fs::create_directories(state_);
    fs::copy_file(repository() / "tests/golden/registry/version1.sqlite", state_ / "moex.sqlite");
    for (int visit = 0; visit < 2; ++visit) {
        const auto registry = open();
        ASSERT_NE(registry, nullptr);
        EXPECT_EQ(registry->key_role("the api key of version 1"), Role::api);
        EXPECT_EQ(registry->key_role("the admin key of version 1"), Role::admin);
        ASSERT_EQ(registry->workers().size(), 1u);
        EXPECT_EQ(registry->workers()[0].pairs_answered, 120u);
        const auto counters = registry->counters();
        EXPECT_NE(std::find(counters.begin(), counters.end(),
                            std::pair<std::string, std::uint64_t>("generated_tokens", 8)),
                  counters.end());
    }

    auto database = SqliteDatabase::open(state_ / "moex.sqlite").value();
    Statement version(*database, "PRAGMA user_version");
    ASSERT_TRUE(version.step());
    EXPECT_EQ(version.integer(0), registry_migrations().back().number);
}

class MigrationTest : public RegistryTest {
  protected:
    MigrationTest() { fs::create_directories(state_); }
    std::unique_ptr<SqliteDatabase> database() {
        return SqliteDatabase::open(state_ / "test.sqlite").value();
    }
    static std::int64_t version_of(Database& database) {
        Statement select(database, "PRAGMA user_version");
        return select.step() ? select.integer(0) : -1;
    }
    const Migration first_{1, "0001_letters", "CREATE TABLE letters (x TEXT)"};
    const Migration second_{2, "0002_numbers",
                            "ALTER TABLE letters ADD COLUMN n INTEGER NOT NULL DEFAULT 7;"
                            "INSERT INTO letters (x) VALUES ('b')"};
};

TEST_F(MigrationTest, EachStepIsTakenOnceAndInOrder) {
    const auto open = database();
    ASSERT_TRUE(migrate(*open, std::span(&first_, 1)).ok());
    ASSERT_TRUE(open->execute("INSERT INTO letters VALUES ('a')").ok());
    EXPECT_EQ(version_of(*open), 1);

    const std::vector<Migration> both{first_, second_};
    ASSERT_TRUE(migrate(*open, both).ok());
    ASSERT_TRUE(migrate(*open, both).ok());
    EXPECT_EQ(version_of(*open), 2);

    Statement rows(*open, "SELECT count(*), sum(n) FROM letters");
    ASSERT_TRUE(rows.step());
    EXPECT_EQ(rows.integer(0), 2);
    EXPECT_EQ(rows.integer(1), 14);
}

TEST_F(MigrationTest, AStepThatFailsChangesNothingAndIsNamed) {
    const auto open = database();
    const std::vector<Migration> steps{
        first_, {2, "0002_broken", "CREATE TABLE half (x TEXT); INSERT INTO nowhere VALUES (1)"}};
    const Status taken = migrate(*open, steps);
    ASSERT_FALSE(taken.ok());
    EXPECT_NE(taken.error().message.find("0002_broken"), std::string::npos)
        << taken.error().message;
    EXPECT_EQ(version_of(*open), 1);
    Statement half(*open, "SELECT count(*) FROM sqlite_master WHERE name = 'half'");
    ASSERT_TRUE(half.step());
    EXPECT_EQ(half.integer(0), 0);
}

TEST_F(MigrationTest, StepsAreNumberedFromOneWithoutGaps) {
    std::int64_t number = 0;
    for (const Migration& step : registry_migrations()) EXPECT_EQ(step.number, ++number);
    EXPECT_GE(number, 1);
}

TEST_F(RegistryTest, AFileThatIsNoDatabaseIsRefused) {
    fs::create_directories(state_);
    std::ofstream(state_ / "moex.sqlite") << std::string(4096, 'x');
    const auto opened = Registry::open(state_);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("moex.sqlite"), std::string::npos)
        << opened.error().message;
}

// A key that was shown to the operator is stored: the child process is killed right after
// create_key() returned, while counters are being written.
TEST_F(RegistryTest, ShownKeysSurviveKill9) {
    std::vector<std::string> shown;
    for (int round = 0; round < 10; ++round) {
        int pipe_ends[2];
        ASSERT_EQ(pipe(pipe_ends), 0);
        const pid_t child = fork();
        ASSERT_GE(child, 0);

        if (child == 0) {
            auto registry = Registry::open(state_);
            if (!registry.ok()) _exit(1);
            for (int i = 0; i < 100; ++i) (*registry)->add_to_counter("calls", 1);
            (*registry)->flush();
            const auto key = (*registry)->create_key(Role::api, "app");
            if (!key.ok() || write(pipe_ends[1], key->data(), key->size()) < 0) _exit(1);

            for (;;) {
                (*registry)->add_to_counter("calls", 1);
                (*registry)->flush();
            }
        }

        close(pipe_ends[1]);
        char buffer[128];
        const ssize_t size = read(pipe_ends[0], buffer, sizeof buffer);
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        close(pipe_ends[0]);

        ASSERT_GT(size, 0);
        shown.emplace_back(buffer, static_cast<std::size_t>(size));
    }

    auto registry = open();
    for (const std::string& key : shown) EXPECT_EQ(registry->key_role(key), Role::api);
    EXPECT_GE(registry->counters().size(), 1u);
}

}  // namespace
}  // namespace moex
