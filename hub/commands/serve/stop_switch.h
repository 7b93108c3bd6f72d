// Stops the hub on Ctrl-C and SIGTERM. Before the server runs, the hub stops at once, because no
// request has to be drained. Later the server drains its requests first.
#pragma once

#include <mutex>

#include "hub/commands/serve/service_manager.h"
#include "hub/commands/signals.h"
#include "hub/net/server.h"

namespace moex {

class StopSwitch {
  public:
    // `manager` is notified before any part of the hub stops, and outlives this object.
    explicit StopSwitch(const ServiceManager& manager);
    // From now on a signal stops `server`. If a signal has already arrived, `server` stops at once.
    void attach(net::Server& server);
    // The caller has stopped the server. From now on a further signal ends the process.
    void detach();
    // Stops the hub as a first signal does. Any thread may call it.
    void stop();

  private:
    void on_signal(int count);

    const ServiceManager& manager_;
    std::mutex mutex_;
    net::Server* server_ = nullptr;
    int num_signals_ = 0;
    SignalWatcher signals_;  // the last member, because its thread uses the members above
};

}  // namespace moex
