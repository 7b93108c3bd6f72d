// An event loop for programs that only wait for a device (tests and benches). The device's waiter
// thread posts functions; the thread that calls run_until() runs them, and may also wait for the
// device itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

class PostedLoop {
  public:
    // Returns a thread-safe function that posts a function to this loop. It must not outlive the
    // loop.
    std::function<void(std::function<void()>)> poster() {
        return [this](std::function<void()> function) {
            const std::lock_guard lock(mutex_);
            functions_.push_back(std::move(function));
            wake_.notify_one();
        };
    }
    // Runs posted functions until a function, or an answer of the device, has set `finished`.
    void run_until(const bool& finished, Device* device = nullptr) {
        while (!finished) {
            std::function<void()> function = take();
            if (function)
                function();
            else if (device == nullptr || !device->answer_read(true))
                wait();
        }
    }

    // Waits for the next posted function, and runs it.
    void run_one() {
        wait();
        take()();
    }

  private:
    std::function<void()> take() {
        const std::lock_guard lock(mutex_);
        if (functions_.empty()) return {};
        std::function<void()> function = std::move(functions_.front());
        functions_.pop_front();
        return function;
    }
    void wait() {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return !functions_.empty(); });
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> functions_;
};

}  // namespace moex::gpu
