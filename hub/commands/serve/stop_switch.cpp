#include "hub/commands/serve/stop_switch.h"

#include <cstdlib>

#include "hub/base/log.h"
#include "hub/commands/command.h"

namespace moex {

StopSwitch::StopSwitch(const ServiceManager& manager)
    : manager_(manager),
      signals_([this](int count, int) { on_signal(count); }) {}

void StopSwitch::on_signal(int count) {
    const std::lock_guard lock(mutex_);
    num_signals_ = count;
    manager_.tell("STOPPING=1");
    if (!server_) std::_Exit(exit_stopped);

    log_info(count == 1 ? "hub: stopping; a second signal stops at once" : "hub: stopping at once");
    server_->stop();
}

void StopSwitch::stop() {
    const std::lock_guard lock(mutex_);
    ++num_signals_;
    manager_.tell("STOPPING=1");
    if (server_) server_->stop();
}

void StopSwitch::attach(net::Server& server) {
    const std::lock_guard lock(mutex_);
    server_ = &server;
    if (num_signals_ > 0) server.stop();
}

void StopSwitch::detach() {
    const std::lock_guard lock(mutex_);
    server_ = nullptr;
}

}  // namespace moex
