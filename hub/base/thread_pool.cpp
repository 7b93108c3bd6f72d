#include "hub/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace moex {
namespace {

thread_local bool inside_pool = false;

// A layer's products follow each other within microseconds, and waking a thread costs about as much
// as one of them: so a thread looks for its next job this long before it sleeps. Longer would take
// the cores from others.
constexpr std::chrono::microseconds spin_time{50};

template <class Predicate>
bool spin_until(const Predicate& holds) {
    const auto give_up = std::chrono::steady_clock::now() + spin_time;
    do {
        for (int i = 0; i < 16; ++i) {
            if (holds()) return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#else
            std::this_thread::yield();
#endif
        }
    } while (std::chrono::steady_clock::now() < give_up);
    return false;
}

}  // namespace

struct ThreadPool::State {
    // The ranges of a job that one thread begins with, in one word: the job's number (32 bits), the
    // first range that nobody took and the one behind the last (16 each). Whoever takes one leaves
    // a word that no other job had, so what a late thread took from an old word is not taken.
    class alignas(64) Share {
      public:
        static constexpr std::size_t ranges_max = 0xffff;

        void set(std::uint32_t job, std::size_t begin, std::size_t end) {
            word_.store(std::uint64_t{job} << 32 | begin << 16 | end, std::memory_order_release);
        }
        // The index of a range, which is done when the taker says so; false: there is none.
        bool take(std::size_t& range) {
            std::uint64_t word = word_.load(std::memory_order_relaxed);
            do {
                range = word >> 16 & 0xffff;
                if (range >= (word & 0xffff)) return false;
            } while (!word_.compare_exchange_weak(word, word + 0x10000, std::memory_order_acquire,
                                                  std::memory_order_relaxed));
            return true;
        }

      private:
        std::atomic<std::uint64_t> word_{0};
    };

    explicit State(std::size_t num_threads) : shares(num_threads) {}

    std::size_t ranges_per_thread = 4;
    std::mutex calls;  // one parallel_for at a time
    std::vector<std::thread> threads;
    std::vector<Share> shares;  // the caller's first

    // The job: written before its shares are, and by nobody until all its ranges are done. Who has
    // taken a range may read it until then.
    const std::function<void(std::size_t, std::size_t)>* body = nullptr;
    std::size_t count = 0, range_size = 0;
    alignas(64) std::atomic<std::size_t> ranges_left{0};

    // What threads look at that wait for a job.
    alignas(64) std::atomic<std::uint32_t> job{0};
    std::atomic<bool> stopping{false};

    // Of those who looked long enough. Who sleeps says so, then looks once more; who has news tells
    // it, then looks for sleepers: so one of the two sees the other.
    alignas(64) std::atomic<std::size_t> sleepers{0};
    std::atomic<bool> caller_sleeps{false};
    std::mutex mutex;
    std::condition_variable wake, done;

    // Who is about to sleep holds the mutex until it does. Told outside: who wakes takes it again.
    void tell(std::condition_variable& news) {
        { const std::lock_guard lock(mutex); }
        news.notify_all();
    }

    // Takes ranges until none is left, thread `index`'s own first.
    void work(std::size_t index) {
        std::size_t num_done = 0;
        for (std::size_t i = 0; i < shares.size(); ++i) {
            Share& share = shares[(index + i) % shares.size()];
            for (std::size_t range; share.take(range); ++num_done)
                (*body)(range * range_size, std::min(count, (range + 1) * range_size));
        }
        if (num_done == 0 || ranges_left.fetch_sub(num_done) > num_done || !caller_sleeps) return;
        tell(done);
    }

    void run(std::size_t index) {
        inside_pool = true;
        std::uint32_t seen = 0;
        const auto has_news = [&] { return job != seen || stopping; };
        for (;;) {
            if (!spin_until(has_news)) {
                std::unique_lock lock(mutex);
                ++sleepers;
                wake.wait(lock, has_news);
                --sleepers;
            }
            if (stopping) return;
            seen = job;
            work(index);
        }
    }

    void begin_job(std::size_t num_ranges) {
        ranges_left.store(num_ranges, std::memory_order_relaxed);
        const std::uint32_t number = job.load(std::memory_order_relaxed) + 1;
        for (std::size_t i = 0; i < shares.size(); ++i)
            shares[i].set(number, num_ranges * i / shares.size(),
                          num_ranges * (i + 1) / shares.size());
        job = number;
        if (sleepers > 0) tell(wake);
    }
    void await_job() {
        const auto is_done = [&] { return ranges_left == 0; };
        if (spin_until(is_done)) return;
        std::unique_lock lock(mutex);
        caller_sleeps = true;
        done.wait(lock, is_done);
        caller_sleeps = false;
    }
};

ThreadPool::ThreadPool(std::size_t num_threads) {
    if (num_threads == 0) num_threads = std::max(1u, std::thread::hardware_concurrency());
    state_ = std::make_unique<State>(num_threads);
    for (std::size_t i = 1; i < num_threads; ++i)
        state_->threads.emplace_back([this, i] { state_->run(i); });
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->stopping = true;
    }
    state_->wake.notify_all();
    for (auto& thread : state_->threads) thread.join();
}

std::size_t ThreadPool::num_threads() const { return state_->shares.size(); }
void ThreadPool::set_ranges_per_thread(std::size_t count) {
    state_->ranges_per_thread = std::max<std::size_t>(count, 1);
}

void ThreadPool::parallel_for(std::size_t count, std::size_t grain,
                              const std::function<void(std::size_t, std::size_t)>& body) {
    if (count == 0) return;
    const std::size_t ranges = std::min(state_->ranges_per_thread * num_threads(),
                                        State::Share::ranges_max);
    const std::size_t range_size = std::max({grain, std::size_t{1}, (count + ranges - 1) / ranges});

    const std::size_t num_ranges = (count + range_size - 1) / range_size;
    if (num_ranges == 1 || state_->threads.empty() || inside_pool) {
        body(0, count);
        return;
    }

    const std::lock_guard one_call(state_->calls);
    state_->body = &body;
    state_->count = count;
    state_->range_size = range_size;
    state_->begin_job(num_ranges);
    inside_pool = true;
    state_->work(0);
    inside_pool = false;
    state_->await_job();
}

}  // namespace moex
