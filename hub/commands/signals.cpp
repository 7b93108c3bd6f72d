#include "hub/commands/signals.h"

#include <pthread.h>
#include <csignal>

#include "protocol/thread_name.h"

namespace moex {

SignalWatcher::SignalWatcher(std::function<void(int, int)> on_signal)
    : on_signal_(std::move(on_signal)) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);

    thread_ = std::thread([this, signals] {
        name_thread("signals");
        for (int count = 1;; ++count) {
            int signal = 0;
            sigwait(&signals, &signal);
            if (done_) return;

            on_signal_(count, signal);
        }
    });
}

SignalWatcher::~SignalWatcher() {
    done_ = true;
    // Wake the watcher's thread, which waits for this signal. The signal does not end the process.
    pthread_kill(thread_.native_handle(), SIGTERM);  // NOLINT(bugprone-bad-signal-to-kill-thread)
    thread_.join();
}

}  // namespace moex
