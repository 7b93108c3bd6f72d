#include "hub/base/thread_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "hub/base/futex.h"
#include "hub/base/num_cores.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

thread_local bool inside_pool = false;

// The products of a layer follow each other within microseconds, and waking a thread costs about as
// much as one product. So a thread without a job spins for this time before it sleeps. A longer
// spin would take the cores from other threads.
constexpr Duration spin_time = 50us;
// A thread that expects a job wakes this long before the job's time: a timer is late by some 50 us,
// and sixteen threads do not wake at the same moment. The thread spins until `look_behind` after
// the job's time, and longer where the job was announced long in advance.
constexpr Duration wake_before = 100us, look_behind = 100us;
constexpr int look_behind_share = 4;
// In a pool with fewer threads, waking threads before a job gains nothing: few threads are woken
// quickly enough anyway, and other programs need the cores. On two cores, with a worker on the same
// machine, there was no gain.
constexpr std::size_t expecting_threads_min = 4;
// A thread that was preempted while it spun shares its core with other threads. It does not spin
// again for this duration, and only sleeps.
constexpr Duration shared_time = 20ms;

template <class Predicate>
bool look_until(TimePoint give_up, const Predicate& holds) {
    do {
        for (int i = 0; i < 16; ++i) {
            if (holds()) return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#else
            std::this_thread::yield();
#endif
        }
    } while (now_steady() < give_up);
    return false;
}

// A waiting thread prefetches this many bytes between two checks for a new job.
constexpr std::size_t lines_bytes = 16 * 64;
// Returns the part of a core's L2 cache, in bytes, that weights may fill. The remaining quarter is
// for other data.
std::size_t own_cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
    const long size = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    return size > 0 ? static_cast<std::size_t>(size) * 3 / 4 : 0;
#else
    return 0;
#endif
}

// Returns how often the system has preempted this thread.
long times_put_off() {
    rusage usage{};
#ifdef RUSAGE_THREAD
    ::getrusage(RUSAGE_THREAD, &usage);
#endif
    return usage.ru_nivcsw;
}

}  // namespace

struct ThreadPool::State {
    // One thread's share of a job, as a range of range indices in one word: the job's number (32
    // bits), the first range that no thread has taken yet, and the end of the ranges (16 bits
    // each). Taking a range leaves a word that no other job has. So a late thread that compares
    // with an old word takes nothing.
    //   job 7, ranges [2, 4):  0x00000007'0002'0004, after one was taken 0x00000007'0003'0004
    class alignas(64) Share {
      public:
        static constexpr std::size_t ranges_max = 0xffff;

        void set(std::uint32_t job, std::size_t begin, std::size_t end) {
            word_.store(std::uint64_t{job} << 32 | begin << 16 | end, std::memory_order_release);
        }
        // Takes a range of this share and writes its index to `range`. The range is done when the
        // thread that took it reports so. Returns false if no range is left.
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
    std::mutex calls;  // allows one call of parallel_for() at a time
    std::vector<std::thread> threads;
    // share of each thread; the first belongs to the caller of parallel_for()
    std::vector<Share> shares;

    // The job in progress. It is written before the threads get their shares of the job's ranges.
    // It does not change until all ranges are done, so a thread that has taken a range may read it.
    const std::function<void(std::size_t, std::size_t)>* body = nullptr;
    std::size_t count = 0, num_ranges = 0;
    alignas(64) std::atomic<std::uint32_t> ranges_left{0};

    // The words that threads poll while they wait for a job.
    alignas(64) std::atomic<std::uint32_t> job{0};
    std::atomic<bool> stopping{false};

    // Number of threads that finished spinning and sleep. A thread first counts itself as sleeping
    // and then checks for a job once more. A caller first stores the job and then checks for
    // sleepers. So either the thread sees the job, or the caller sees the sleeping thread.
    alignas(64) std::atomic<std::uint32_t> sleepers{0};
    std::atomic<bool> caller_sleeps{false};

    // The time of the next expected job, and the time until which threads spin for it (0: no job is
    // expected), as clock values.
    alignas(64) std::atomic<Duration::rep> expected_until{0};
    std::atomic<Duration::rep> expected_at{0};
    // The memory that the next expected job will read. Each address and size is stored atomically,
    // but a reader may see a mixture of two expect_job() calls. Only prefetches use these
    // addresses, and a wrong prefetch is harmless.
    struct Piece {
        std::atomic<const std::byte*> data{nullptr};
        std::atomic<std::size_t> size{0};
    };
    Piece reads[expected_reads_max][Reads::pieces_max];
    const std::size_t cache_bytes = own_cache_bytes();

    // Two ranges differ in length by one iteration at most, and two threads' shares differ by one
    // range at most.
    std::size_t range_begin(std::size_t range) const { return count * range / num_ranges; }

    // Computes ranges of the job until no range is left, beginning with thread `index`'s own share.
    void work(std::size_t index) {
        std::uint32_t num_done = 0;
        for (std::size_t i = 0; i < shares.size(); ++i) {
            Share& share = shares[(index + i) % shares.size()];
            for (std::size_t range; share.take(range); ++num_done)
                (*body)(range_begin(range), range_begin(range + 1));
        }
        if (num_done == 0 || ranges_left.fetch_sub(num_done) > num_done || !caller_sleeps) return;
        futex_wake_all(ranges_left);
    }

    void run(std::size_t index) {
        name_thread("compute");
        inside_pool = true;
        // until this time the thread only sleeps, since other threads share its core
        TimePoint shared_until{};
        for (std::uint32_t seen = 0;;) {
            await_news(index, seen, shared_until);
            if (stopping) return;
            seen = job;
            work(index);
        }
    }

    // Waits until the number of the current job is not `seen` any more.
    void await_news(std::size_t index, std::uint32_t seen, TimePoint& shared_until) {
        const auto has_news = [&] { return job != seen; };
        const auto is_expected = [&] { return expected_until != 0; };
        look_until(now_steady() + spin_time, [&] { return has_news() || is_expected(); });
        if (is_expected() && now_steady() >= shared_until) {
            const TimePoint until{Duration(expected_until)};
            const TimePoint awake_at = TimePoint(Duration(expected_at)) - wake_before;
            bring_share(index, has_news);
            while (!has_news() && now_steady() < awake_at) sleep(seen, awake_at);
            const long put_off = times_put_off();
            look_until(until, has_news);
            if (times_put_off() > put_off) shared_until = now_steady() + shared_time;
        }
        while (!has_news()) sleep(seen);
    }
    template <class Predicate>
    void bring_share(std::size_t index, const Predicate& has_news) {
        std::size_t all_bytes = 0;
        for (const auto& read : reads)
            for (const Piece& piece : read) all_bytes += piece.size.load(std::memory_order_relaxed);
        if (all_bytes / shares.size() > cache_bytes) return;

        for (const auto& read : reads) {
            std::size_t bytes = 0;
            for (const Piece& piece : read) bytes += piece.size.load(std::memory_order_relaxed);
            std::size_t begin = bytes * index / shares.size(),
                        end = bytes * (index + 1) / shares.size();
            for (const Piece& piece : read) {
                const std::size_t size = piece.size.load(std::memory_order_relaxed);
                const std::byte* const data = piece.data.load(std::memory_order_relaxed);
                for (std::size_t at = begin; at < std::min(end, size); at += lines_bytes) {
                    for (std::size_t line = 0; line < lines_bytes; line += 64)
                        __builtin_prefetch(data + at + line, 0, 3);
                    if (has_news()) return;
                }
                begin -= std::min(begin, size);
                end -= std::min(end, size);
            }
        }
    }
    void sleep(std::uint32_t seen, std::optional<TimePoint> deadline = {}) {
        ++sleepers;
        futex_wait(job, seen, deadline);
        --sleepers;
    }
    void tell_news() {
        ++job;
        if (sleepers > 0) futex_wake_all(job);
    }

    void begin_job(std::uint32_t num_ranges) {
        ranges_left.store(num_ranges, std::memory_order_relaxed);
        if (expected_until != 0) expected_until = 0;  // no job is expected any more: it starts now
        const std::uint32_t number = job.load(std::memory_order_relaxed) + 1;
        for (std::size_t i = 0; i < shares.size(); ++i)
            shares[i].set(number, num_ranges * i / shares.size(),
                          num_ranges * (i + 1) / shares.size());
        tell_news();
    }
    void await_job() {
        if (look_until(now_steady() + spin_time, [&] { return ranges_left == 0; })) return;
        caller_sleeps = true;
        for (std::uint32_t left; (left = ranges_left) != 0;) futex_wait(ranges_left, left);
        caller_sleeps = false;
    }
};

ThreadPool::ThreadPool(std::size_t num_threads) {
    if (num_threads == 0) num_threads = num_cores();
    state_ = std::make_unique<State>(num_threads);
    for (std::size_t i = 1; i < num_threads; ++i)
        state_->threads.emplace_back([this, i] { state_->run(i); });
}

ThreadPool::~ThreadPool() {
    state_->stopping = true;
    state_->tell_news();
    for (auto& thread : state_->threads) thread.join();
}

std::size_t ThreadPool::num_threads() const { return state_->shares.size(); }
void ThreadPool::set_ranges_per_thread(std::size_t count) {
    state_->ranges_per_thread = std::max<std::size_t>(count, 1);
}

void ThreadPool::expect_job(TimePoint when, std::span<const Reads> reads) {
    if (num_threads() < expecting_threads_min) return;
    const TimePoint now = now_steady();
    const Duration behind = std::max(look_behind, (when - now) / look_behind_share);
    for (std::size_t i = 0; i < expected_reads_max; ++i)
        for (std::size_t j = 0; j < Reads::pieces_max; ++j) {
            const std::span<const std::byte> piece = i < reads.size()
                                                         ? reads[i].pieces[j]
                                                         : std::span<const std::byte>();
            state_->reads[i][j].data.store(piece.data(), std::memory_order_relaxed);
            state_->reads[i][j].size.store(piece.size(), std::memory_order_relaxed);
        }
    state_->expected_at = when.time_since_epoch().count();
    state_->expected_until = (when + behind).time_since_epoch().count();
}

void ThreadPool::parallel_for(std::size_t count, std::size_t grain,
                              const std::function<void(std::size_t, std::size_t)>& body) {
    if (count == 0) return;
    const std::size_t wanted = count / std::clamp<std::size_t>(grain, 1, count);
    std::size_t num_ranges = std::min(
        {wanted, state_->ranges_per_thread * num_threads(), State::Share::ranges_max});
    if (num_ranges > num_threads()) num_ranges -= num_ranges % num_threads();
    if (num_ranges == 1 || state_->threads.empty() || inside_pool) {
        body(0, count);
        return;
    }

    const std::lock_guard one_call(state_->calls);
    state_->body = &body;
    state_->count = count;
    state_->num_ranges = num_ranges;
    state_->begin_job(static_cast<std::uint32_t>(num_ranges));
    inside_pool = true;
    state_->work(0);
    inside_pool = false;
    state_->await_job();
}

}  // namespace moex
