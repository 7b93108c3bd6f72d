// What the service manager that started this process is told: that the hub serves, lives, stops.
// Sources: sd_notify(3) for the datagrams, systemd.service(5) for Type=notify and WatchdogSec.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "hub/base/clock.h"

namespace moex {

// Silent where nobody asked to be told. Copied freely: it holds no socket between two words.
class ServiceManager {
  public:
    using Environment = std::function<std::optional<std::string>(const char*)>;

    // Of NOTIFY_SOCKET (a path, or '@' and an abstract name), WATCHDOG_USEC and WATCHDOG_PID.
    explicit ServiceManager(const Environment& environment);

    // Lines of NAME=value, e.g. "READY=1\nSTATUS=serves". False where nobody asked to be told, or
    // nobody took it: then there is nothing that the hub could do about it. Any thread.
    bool tell(std::string_view lines) const;

    // How often "WATCHDOG=1" is due, half of the manager's patience; zero: nobody waits for it.
    Duration watchdog_every() const { return watchdog_every_; }

  private:
    std::string socket_;
    Duration watchdog_every_{0};
};

// Says "WATCHDOG=1" whenever it is due, from the loop that it watches: `post` hands a function to
// that loop, and a loop that stands still takes none.
class LifeSigns {
  public:
    using Post = std::function<void(std::function<void()>)>;

    // `manager` outlives whatever was posted.
    LifeSigns(const ServiceManager& manager, Post post);
    ~LifeSigns();
    LifeSigns(const LifeSigns&) = delete;

  private:
    void run();

    const ServiceManager& manager_;
    const Post post_;
    std::mutex mutex_;
    std::condition_variable ended_;
    bool done_ = false;
    std::thread thread_;  // last: it uses the members above
};

}  // namespace moex
