// Handles SIGINT and SIGTERM on a separate thread, where locks and I/O are allowed, unlike in a
// signal handler.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace moex {

class SignalWatcher {
  public:
    // Make the watcher before any other thread, because threads inherit the blocked signals.
    // `on_signal(n, number)` gets n = 1 for the first signal, n = 2 for the second one, and the
    // number of the signal.
    explicit SignalWatcher(std::function<void(int, int)> on_signal);
    ~SignalWatcher();

  private:
    std::atomic<bool> done_ = false;
    std::function<void(int, int)> on_signal_;
    std::thread thread_;
};

}  // namespace moex
