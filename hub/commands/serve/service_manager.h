// Notifies the service manager that started this process: the hub serves, is alive, or stops.
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

// Sends nothing if no manager requested notifications. Copies are cheap: the object holds no socket
// between two messages.
class ServiceManager {
  public:
    using Environment = std::function<std::optional<std::string>(const char*)>;

    // Reads NOTIFY_SOCKET (a path, or '@' and an abstract name), WATCHDOG_USEC and WATCHDOG_PID.
    explicit ServiceManager(const Environment& environment);

    // Sends lines of NAME=value, e.g. "READY=1\nSTATUS=serves". Returns false if no manager
    // requested notifications or received this one; the hub can then do nothing about it. Any
    // thread.
    bool tell(std::string_view lines) const;

    // Returns the interval of "WATCHDOG=1", half of the manager's timeout. Zero: no watchdog runs.
    Duration watchdog_every() const { return watchdog_every_; }

  private:
    std::string socket_;
    Duration watchdog_every_{0};
};

// Sends "WATCHDOG=1" at its interval, from the event loop that the watchdog observes. `post` passes
// a function to that loop, and a loop that hangs runs none.
class LifeSigns {
  public:
    using Post = std::function<void(std::function<void()>)>;

    // `manager` outlives the functions that were posted.
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
    std::thread thread_;  // the last member: the thread uses the members above
};

}  // namespace moex
