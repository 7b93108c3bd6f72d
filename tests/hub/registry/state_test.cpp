// Tests of the state folder: its lock, its backup, and writes that fail.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include <gtest/gtest.h>

#include "hub/base/log.h"
#include "hub/registry/backup.h"
#include "hub/registry/registry.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

class StateTest : public testing::Test {
  protected:
    StateTest() {
        set_log(LogLevel::error);
        std::string pattern = (fs::temp_directory_path() / "moex-state-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        root_ = pattern;
    }
    ~StateTest() override { fs::remove_all(root_); }
    fs::path root_;
};

TEST_F(StateTest, LockNamesItsHolderAndEndsWithIt) {
    EXPECT_FALSE(StateLock::holder(root_));
    {
        const auto lock = StateLock::take(root_);
        ASSERT_TRUE(lock.ok()) << lock.error().message;
        const auto holder = StateLock::holder(root_);
        ASSERT_TRUE(holder);
        EXPECT_EQ(holder->process_id, ::getpid());
        EXPECT_FALSE(holder->keys);

        const auto second = StateLock::take(root_);
        ASSERT_FALSE(second.ok());
        EXPECT_EQ(second.error().code, ErrorCode::unavailable);
        EXPECT_NE(second.error().message.find(text("process ", ::getpid(), ", started 20")),
                  std::string::npos)
            << second.error().message;
    }
    EXPECT_FALSE(StateLock::holder(root_));
    EXPECT_TRUE(StateLock::take(root_).ok());
}

TEST_F(StateTest, LockOfAKilledProcessIsFree) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const auto lock = StateLock::take(root_);
        const char byte = lock.ok() ? '1' : '0';
        if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
        for (;;) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ASSERT_EQ(byte, '1');
    EXPECT_EQ(StateLock::holder(root_)->process_id, child);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_FALSE(StateLock::holder(root_));
    EXPECT_TRUE(StateLock::take(root_).ok());
}

TEST_F(StateTest, HolderIsWaitedForUntilItUsesTheKeysAsStored) {
    auto hub = *Registry::open(root_);
    auto beside = *Registry::open(root_);
    EXPECT_TRUE(beside->wait_until_seen(Duration{})) << "no process serves";

    hub->keep(*StateLock::take(root_));
    const std::string key = *hub->create_key(Role::api, "ada");
    ASSERT_TRUE(beside->revoke_key("ada").ok());
    ASSERT_TRUE(beside->wait_until_seen(std::chrono::seconds(20)));
    EXPECT_FALSE(hub->find_key(key)) << "the hub has seen it when the wait returns";
}

TEST_F(StateTest, HolderThatDoesNotReactIsReported) {
    auto beside = *Registry::open(root_);
    const auto lock = *StateLock::take(root_);
    EXPECT_FALSE(beside->wait_until_seen(std::chrono::milliseconds(20)));
}

TEST_F(StateTest, BackupIsPrivateAndRestoresKeysAndJoinToken) {
    const fs::path file = root_ / "copy", state = root_ / "state", restored = root_ / "restored";
    const std::string secret(8192, 's');
    std::string key, token;
    {
        auto hub = *Registry::open(state);  // stays open: a hub that serves
        key = *hub->create_key(Role::api, "ada");
        token = *hub->join_token();
        ASSERT_TRUE(hub->bans().add("worker", "", "lied", 1000).ok());
        // Pages of prompts, the key that encrypts them, and the key that signs for this hub alone.
        fs::create_directory(state / "kv-pages");
        for (const char* kept : {"kv-pages/page", "kv-key", "signing-key"})
            std::ofstream(state / kept) << secret;
        const Status made = back_up_state(state, file);
        ASSERT_TRUE(made.ok()) << made.error().message;
        ASSERT_TRUE(hub->create_key(Role::api, "later").ok());
    }
    struct stat info {};
    ASSERT_EQ(::stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_FALSE(fs::exists(file.string() + ".part"));
    EXPECT_FALSE(fs::exists(file.string() + "-wal"));
    EXPECT_EQ(back_up_state(state, file).error().code, ErrorCode::invalid_argument);
    std::ifstream in(file, std::ios::binary);
    const std::string copy(std::istreambuf_iterator<char>(in), {});
    EXPECT_EQ(copy.find(secret.substr(0, 32)), std::string::npos) << "a kept page or key";

    fs::create_directory(restored);
    fs::copy_file(file, restored / "moex.sqlite");
    for (int start = 0; start < 2; ++start) {
        const auto hub = Registry::open(restored);
        ASSERT_TRUE(hub.ok()) << hub.error().message;
        EXPECT_TRUE((*hub)->find_key(key));
        EXPECT_EQ((*hub)->keys().size(), 1u);
        EXPECT_EQ(*(*hub)->join_token(), token);
        EXPECT_EQ((*hub)->bans().list().size(), 1u);
    }
    ASSERT_TRUE(back_up_state(restored, root_ / "again").ok());
}

TEST_F(StateTest, BackupOfNoStateIsRefused) {
    EXPECT_EQ(back_up_state(root_ / "none", root_ / "copy").error().code, ErrorCode::not_found);
    EXPECT_FALSE(fs::exists(root_ / "copy"));
}

// A limit of file sizes has the effect of a full disk: writes fail, and later succeed.
TEST_F(StateTest, WritesThatFailAreKnownAndTokenUseIsKept) {
    auto hub = *Registry::open(root_);
    hub->flush();
    EXPECT_FALSE(hub->writes_fail());

    ::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit none = before;
    none.rlim_cur = 0;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
    hub->add_token_use("ada", {.requests = 1, .prompt_tokens = 2, .answer_tokens = 3});
    hub->flush();
    const bool failed = hub->writes_fail();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(failed);

    const auto use = hub->token_use();
    EXPECT_FALSE(hub->writes_fail());
    ASSERT_EQ(use.size(), 1u);
    EXPECT_EQ(use[0].answer_tokens, 3u);
}

}  // namespace
}  // namespace moex
