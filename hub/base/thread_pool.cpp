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
    std::size_t ranges_per_thread = 4;
    std::mutex calls;  // one parallel_for at a time
    std::mutex mutex;
    std::condition_variable wake, done;
    std::vector<std::thread> threads;
    // Everything below changes under `mutex` only, except next_chunk, which the threads of one job
    // share. Atomics are what spinners look at.
    const std::function<void(std::size_t, std::size_t)>* body = nullptr;
    std::size_t count = 0, chunk = 0, num_chunks = 0;
    std::atomic<std::size_t> busy{0};
    std::atomic<std::uint64_t> job{0};
    std::atomic<bool> stopping{false};
    std::atomic<std::size_t> next_chunk{0};

    void work_on_chunks(const std::function<void(std::size_t, std::size_t)>& work,
                        std::size_t total, std::size_t step, std::size_t chunks) {
        for (std::size_t i; (i = next_chunk.fetch_add(1, std::memory_order_relaxed)) < chunks;)
            work(i * step, std::min(total, (i + 1) * step));
    }

    void run() {
        inside_pool = true;
        std::uint64_t seen = 0;
        for (;;) {
            spin_until([&] { return stopping || job != seen; });
            std::unique_lock lock(mutex);
            wake.wait(lock, [&] { return stopping || job != seen; });
            if (stopping) return;

            seen = job;
            if (!body) continue;  // came too late: the others have done it

            ++busy;
            const auto* work = body;
            const std::size_t total = count, step = chunk, chunks = num_chunks;
            lock.unlock();
            work_on_chunks(*work, total, step, chunks);
            lock.lock();
            if (--busy == 0) done.notify_one();
        }
    }
};

ThreadPool::ThreadPool(std::size_t num_threads) : state_(std::make_unique<State>()) {
    if (num_threads == 0) num_threads = std::max(1u, std::thread::hardware_concurrency());
    for (std::size_t i = 1; i < num_threads; ++i)
        state_->threads.emplace_back([this] { state_->run(); });
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->stopping = true;
    }
    state_->wake.notify_all();
    for (auto& thread : state_->threads) thread.join();
}

std::size_t ThreadPool::num_threads() const { return state_->threads.size() + 1; }
void ThreadPool::set_ranges_per_thread(std::size_t count) {
    state_->ranges_per_thread = std::max<std::size_t>(count, 1);
}

void ThreadPool::parallel_for(std::size_t count, std::size_t grain,
                              const std::function<void(std::size_t, std::size_t)>& body) {
    if (count == 0) return;
    const std::size_t ranges = state_->ranges_per_thread * num_threads();
    const std::size_t chunk = std::max({grain, std::size_t{1}, (count + ranges - 1) / ranges});

    const std::size_t num_chunks = (count + chunk - 1) / chunk;
    if (num_chunks == 1 || state_->threads.empty() || inside_pool) {
        body(0, count);
        return;
    }

    const std::lock_guard one_call(state_->calls);
    {
        const std::lock_guard lock(state_->mutex);
        state_->body = &body;
        state_->count = count;
        state_->chunk = chunk;
        state_->num_chunks = num_chunks;
        state_->next_chunk.store(0, std::memory_order_relaxed);
        ++state_->job;
    }

    state_->wake.notify_all();
    inside_pool = true;
    state_->work_on_chunks(body, count, chunk, num_chunks);
    inside_pool = false;

    {
        const std::lock_guard lock(state_->mutex);
        state_->body = nullptr;  // a thread that wakes from here on finds no job
    }

    if (spin_until([&] { return state_->busy == 0; })) return;
    std::unique_lock lock(state_->mutex);
    state_->done.wait(lock, [&] { return state_->busy == 0; });
}

}  // namespace moex
