// Holds events back until they may run. A job submits several sequences; until all are submitted,
// it may still be answered with a refusal, and the first tokens of the first sequence wait here.
//   deliver(a); deliver(b); open() runs a, then b; deliver(c) runs c at once
// Threads: open() runs the events that came before on its own thread; deliver() runs later ones on
// the caller's. All run in the order of their delivery if one thread delivers.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace moex {

class EventGate {
  public:
    // Runs `event` now, or when open() is called. No lock is held while an event runs.
    template <class Event>
    void deliver(Event event) {
        {
            const std::lock_guard lock(mutex_);
            if (!is_open_) {
                early_.emplace_back(std::move(event));
                return;
            }
        }
        event();
    }

    // Runs the events so far, also those that arrive meanwhile. Call it once.
    void open() {
        for (;;) {
            std::vector<std::function<void()>> events;
            {
                const std::lock_guard lock(mutex_);
                if (early_.empty()) {
                    is_open_ = true;
                    return;
                }
                events.swap(early_);
            }
            for (const auto& event : events) event();
        }
    }

  private:
    std::mutex mutex_;
    bool is_open_ = false;
    std::vector<std::function<void()>> early_;
};

}  // namespace moex
