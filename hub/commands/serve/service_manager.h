// Notifies the service manager that started this process when the hub serves, that it is alive, and
// when it stops. Sources: sd_notify(3) for the datagrams, systemd.service(5) for Type=notify and
// WatchdogSec.
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

// Sends messages to the service manager. Sends nothing if no manager requested notifications.
// Copies are cheap, because the object holds no socket between two messages.
class ServiceManager {
  public:
    using Environment = std::function<std::optional<std::string>(const char*)>;

    // Reads the variables NOTIFY_SOCKET (a path, or '@' and an abstract name), WATCHDOG_USEC and
    // WATCHDOG_PID.
    explicit ServiceManager(const Environment& environment);

    // Sends lines of the form NAME=value, e.g. "READY=1\nSTATUS=serves". Returns false if no
    // manager requested notifications, or if the manager did not receive this message; the hub
    // cannot repair that. May be called on any thread.
    bool tell(std::string_view lines) const;

    // Returns the interval at which to send "WATCHDOG=1", half of the manager's timeout. Zero: the
    // manager runs no watchdog.
    Duration watchdog_every() const { return watchdog_every_; }

  private:
    std::string socket_;
    Duration watchdog_every_{0};
};

// Sends "WATCHDOG=1" at regular intervals from the event loop that the watchdog observes. `post`
// passes a function to that loop. A loop that hangs runs no posted function, so the messages stop.
class LifeSigns {
  public:
    using Post = std::function<void(std::function<void()>)>;

    // `manager` outlives the functions that were posted to the event loop.
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
    std::thread thread_;  // the last member, because the thread uses the members above
};

}  // namespace moex
