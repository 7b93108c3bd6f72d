// Wakes a thread that waits for an event, for a descriptor or for a time.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

#include "hub/base/clock.h"

namespace moex {

class WakeEvent {
  public:
    WakeEvent() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        if (event_ < 0) throw std::runtime_error("eventfd: no descriptor is left");
    }
    WakeEvent(const WakeEvent&) = delete;
    WakeEvent& operator=(const WakeEvent&) = delete;
    ~WakeEvent() { ::close(event_); }

    void set() const {  // any thread
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(event_, &one, sizeof one);
    }
    // Waits until set() was called, `descriptor` is readable (-1: none), or `most` has passed.
    void wait(int descriptor, Duration most) const {
        pollfd waits[] = {{event_, POLLIN, 0}, {descriptor, POLLIN, 0}};
        const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(most).count();
        (void)::poll(waits, 2, static_cast<int>(ms));  // a signal may end the wait early
        std::uint64_t count = 0;
        [[maybe_unused]] const auto read = ::read(event_, &count, sizeof count);
    }

  private:
    const int event_;
};

}  // namespace moex
