#include "hub/commands/serve/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstring>

#include "protocol/thread_name.h"

namespace moex {
namespace {

std::uint64_t number_of(const std::optional<std::string>& words) {
    std::uint64_t number = 0;
    if (words) std::from_chars(words->data(), words->data() + words->size(), number);
    return number;
}

}  // namespace

ServiceManager::ServiceManager(const Environment& environment)
    : socket_(environment("NOTIFY_SOCKET").value_or("")) {
    // WATCHDOG_PID names another process if a script that the manager started has started this
    // process.
    const auto watched = environment("WATCHDOG_PID");
    if (watched && number_of(watched) != static_cast<std::uint64_t>(::getpid())) return;

    watchdog_every_ = std::chrono::microseconds(number_of(environment("WATCHDOG_USEC")) / 2);
}

bool ServiceManager::tell(std::string_view lines) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_.empty() || socket_.size() >= sizeof address.sun_path) return false;

    std::memcpy(address.sun_path, socket_.data(), socket_.size());
    if (socket_.front() == '@') address.sun_path[0] = '\0';
    const auto address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                                      socket_.size());

    const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return false;
    const ssize_t sent = ::sendto(socket, lines.data(), lines.size(), MSG_NOSIGNAL,
                                  reinterpret_cast<const sockaddr*>(&address), address_bytes);
    ::close(socket);
    return sent == static_cast<ssize_t>(lines.size());
}

LifeSigns::LifeSigns(const ServiceManager& manager, Post post)
    : manager_(manager),
      post_(std::move(post)) {
    if (manager.watchdog_every() > Duration{0}) thread_ = std::thread([this] { run(); });
}

LifeSigns::~LifeSigns() {
    {
        const std::lock_guard lock(mutex_);
        done_ = true;
    }
    ended_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void LifeSigns::run() {
    name_thread("watchdog");
    std::unique_lock lock(mutex_);
    while (!done_) {
        post_([&manager = manager_] { manager.tell("WATCHDOG=1"); });
        ended_.wait_for(lock, manager_.watchdog_every(), [this] { return done_; });
    }
}

}  // namespace moex
