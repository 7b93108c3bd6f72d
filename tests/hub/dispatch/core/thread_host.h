// Provides the swarm's strand for tests with real threads: one thread with a queue and a timer.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "hub/dispatch/core/swarm_backend.h"

namespace moex {

// Runs posted functions on its own thread. The timer is checked by the same thread.
class ThreadHost : public SwarmHost {
  public:
    ThreadHost() : thread_([this] { run(); }) {}
    ~ThreadHost() override { stop(); }
    void stop() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        signal_.notify_all();
        if (thread_.joinable()) thread_.join();
    }
    void post(std::function<void()> function) override {
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(std::move(function));
        }
        signal_.notify_all();
    }
    void set_timer(TimePoint at, std::function<void()> function) override {
        const std::lock_guard lock(mutex_);
        timer_at_ = at;
        timer_ = std::move(function);
    }

  private:
    void run() {
        std::unique_lock lock(mutex_);
        while (!stop_) {
            std::function<void()> next;
            if (!queue_.empty()) {
                next = std::move(queue_.front());
                queue_.pop_front();
            } else if (timer_ && timer_at_ <= now_steady()) {
                next = std::exchange(timer_, nullptr);
            } else {
                if (timer_)
                    signal_.wait_until(lock, timer_at_);
                else
                    signal_.wait(lock);
                continue;
            }
            lock.unlock();
            next();
            lock.lock();
        }
    }
    std::mutex mutex_;
    std::condition_variable signal_;
    std::deque<std::function<void()>> queue_;
    TimePoint timer_at_{};
    std::function<void()> timer_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace moex
