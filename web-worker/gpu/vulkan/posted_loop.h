// A thread that runs what others post to it: where a worker's device, whose waiter is a thread of
// its own, calls back. For programs that have nothing else to do meanwhile.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace moex::gpu {

class PostedLoop {
  public:
    // Thread-safe; must not outlive the loop.
    std::function<void(std::function<void()>)> poster() {
        return [this](std::function<void()> function) {
            const std::lock_guard lock(mutex_);
            functions_.push_back(std::move(function));
            wake_.notify_one();
        };
    }
    // Runs what comes until one of the functions has set `finished`.
    void run_until(const bool& finished) {
        while (!finished) {
            std::function<void()> function;
            {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [&] { return !functions_.empty(); });
                function = std::move(functions_.front());
                functions_.pop_front();
            }
            function();
        }
    }

  private:
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> functions_;
};

}  // namespace moex::gpu
