#include "web-worker/native/round_trips.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

namespace moex::native {
namespace {

using Clock = std::chrono::steady_clock;

struct Connecting {
    int socket = -1;
    Clock::time_point since{};
    Connecting() = default;
    Connecting(Connecting&& other) noexcept
        : socket(std::exchange(other.socket, -1)),
          since(other.since) {}
    ~Connecting() { end(); }
    void end() {
        if (socket >= 0) close(std::exchange(socket, -1));
    }
};

using Address = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Returns null if the name is not known.
Address address_of(const HubUrl& hub) {
    addrinfo wanted{}, *list = nullptr;
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_ADDRCONFIG;
    if (getaddrinfo(hub.host.c_str(), hub.port.c_str(), &wanted, &list) != 0) list = nullptr;
    return {list, freeaddrinfo};
}

Connecting connect_to(const addrinfo* found) {
    Connecting made;
    if (found == nullptr) return made;
    made.socket = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    made.since = Clock::now();
    if (made.socket >= 0 && connect(made.socket, found->ai_addr, found->ai_addrlen) != 0 &&
        errno != EINPROGRESS)
        made.end();
    return made;
}

}  // namespace

std::vector<std::optional<double>> round_trips_ms(std::span<const HubUrl> hubs,
                                                  std::chrono::milliseconds limit) {
    std::vector<std::optional<double>> times(hubs.size());
    // Look all names up first: a lookup would count for the connections that were begun before it.
    std::vector<Address> addresses;
    for (const HubUrl& hub : hubs) addresses.push_back(address_of(hub));
    std::vector<Connecting> open;
    for (const Address& address : addresses) open.push_back(connect_to(address.get()));

    const Clock::time_point until = Clock::now() + limit;
    for (;;) {
        std::vector<pollfd> waits;
        for (const Connecting& one : open)  // poll() ignores a negative socket
            waits.push_back({.fd = one.socket, .events = POLLOUT, .revents = 0});
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        const bool is_done = std::ranges::all_of(open, [](auto& one) { return one.socket < 0; });
        if (is_done || left.count() <= 0) return times;
        if (poll(waits.data(), waits.size(), static_cast<int>(left.count())) <= 0) continue;

        const Clock::time_point now = Clock::now();
        for (std::size_t i = 0; i < open.size(); ++i) {
            if (waits[i].revents == 0) continue;
            int error = 0;
            socklen_t size = sizeof error;
            getsockopt(open[i].socket, SOL_SOCKET, SO_ERROR, &error, &size);
            if (error == 0)
                times[i] = std::chrono::duration<double, std::milli>(now - open[i].since).count();
            open[i].end();
        }
    }
}

}  // namespace moex::native
