// Tests the messages that a service manager receives, on real datagram sockets.
#include "hub/commands/serve/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>

#include "protocol/text.h"

namespace moex {
namespace {

// The socket of a service manager. Its name is a path, or '@' and an abstract name.
class NotifySocket {
  public:
    explicit NotifySocket(const std::string& name)
        : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path, name.data(), name.size());
        if (name.front() == '@') address.sun_path[0] = '\0';
        const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
        EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), bytes), 0) << name;
    }
    ~NotifySocket() { ::close(socket_); }

    // Waits for the next message and returns it. Returns "" if `flags` has MSG_DONTWAIT and no
    // message is pending.
    std::string next(int flags = 0) const {
        char words[256];
        const ssize_t size = ::recv(socket_, words, sizeof words, flags);
        return size > 0 ? std::string(words, static_cast<std::size_t>(size)) : "";
    }

  private:
    int socket_;
};

ServiceManager manager_of(const std::map<std::string, std::string>& environment) {
    return ServiceManager([&](const char* name) -> std::optional<std::string> {
        const auto found = environment.find(name);
        return found == environment.end() ? std::nullopt : std::optional(found->second);
    });
}

std::string own_abstract_name() { return text("@moex-test-", ::getpid()); }

TEST(ServiceManagerTest, APathAndAnAbstractNameAreTold) {
    const std::string folder = text(std::filesystem::temp_directory_path().string(), "/moex-sd-",
                                    ::getpid());
    std::filesystem::create_directory(folder);
    for (const std::string& name : {folder + "/notify", own_abstract_name()}) {
        const NotifySocket socket(name);
        EXPECT_TRUE(manager_of({{"NOTIFY_SOCKET", name}}).tell("READY=1\nSTATUS=serves"));
        EXPECT_EQ(socket.next(), "READY=1\nSTATUS=serves");
    }
    std::filesystem::remove_all(folder);
}

TEST(ServiceManagerTest, NothingIsSaidWhereNobodyAskedOrListens) {
    EXPECT_FALSE(manager_of({}).tell("READY=1"));
    EXPECT_FALSE(manager_of({{"NOTIFY_SOCKET", ""}}).tell("READY=1"));
    EXPECT_FALSE(manager_of({{"NOTIFY_SOCKET", "/nowhere/notify"}}).tell("READY=1"));
    EXPECT_FALSE(manager_of({{"NOTIFY_SOCKET", std::string(400, 'x')}}).tell("READY=1"));
}

TEST(ServiceManagerTest, TheWatchdogIsFedInHalfOfItsTimeByTheProcessItWatches) {
    const std::string own = std::to_string(::getpid()), other = std::to_string(::getppid());
    EXPECT_EQ(manager_of({{"WATCHDOG_USEC", "3000000"}}).watchdog_every(), 1500ms);
    EXPECT_EQ(manager_of({{"WATCHDOG_USEC", "3000000"}, {"WATCHDOG_PID", own}}).watchdog_every(),
              1500ms);
    EXPECT_EQ(manager_of({{"WATCHDOG_USEC", "3000000"}, {"WATCHDOG_PID", other}}).watchdog_every(),
              Duration{0});
    EXPECT_EQ(manager_of({{"WATCHDOG_USEC", "soon"}}).watchdog_every(), Duration{0});
    EXPECT_EQ(manager_of({}).watchdog_every(), Duration{0});
}

TEST(ServiceManagerTest, ALoopThatStandsStillGivesNoSignOfLife) {
    const NotifySocket socket(own_abstract_name());
    const ServiceManager manager = manager_of(
        {{"NOTIFY_SOCKET", own_abstract_name()}, {"WATCHDOG_USEC", "2000"}});

    std::mutex mutex;
    std::condition_variable came;
    std::deque<std::function<void()>> loop;
    const LifeSigns signs(manager, [&](std::function<void()> function) {
        const std::lock_guard lock(mutex);
        loop.push_back(std::move(function));
        came.notify_all();
    });

    std::unique_lock lock(mutex);
    came.wait(lock, [&] { return loop.size() >= 3; });
    EXPECT_EQ(socket.next(MSG_DONTWAIT), "");
    loop.front()();
    EXPECT_EQ(socket.next(), "WATCHDOG=1");
}

TEST(ServiceManagerTest, NoLifeSignIsSentWithoutAWatchdog) {
    std::atomic<int> posted = 0;
    {
        const LifeSigns signs(manager_of({}), [&](const std::function<void()>&) { ++posted; });
    }
    EXPECT_EQ(posted, 0);
}

}  // namespace
}  // namespace moex
