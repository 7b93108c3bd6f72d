// Compute threads: the only place where the hub does math in parallel. parallel_for() blocks its
// caller, which works, too; a call from inside a range runs inline. Idle threads sleep after a
// short spin. If the time of the next job is known, the threads are already awake when it starts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "hub/base/clock.h"

namespace moex {

class ThreadPool {
  public:
    // `num_threads` includes the caller of parallel_for; 0 means one thread per core.
    explicit ThreadPool(std::size_t num_threads = 0);
    ~ThreadPool();
    std::size_t num_threads() const;
    // Sets the number of ranges that a thread's share is cut into, so that other threads can take
    // ranges from a thread that is late. For benches; must not be called while a parallel_for()
    // runs.
    void set_ranges_per_thread(std::size_t count);
    // Runs body(begin, end) over disjoint ranges that cover [0, count), each of at least `grain`
    // iterations where possible. Thread i of n begins at position count · i / n; thread 0 is the
    // caller. A thread that has finished its share takes ranges from the shares of other threads.
    void parallel_for(std::size_t count, std::size_t grain,
                      const std::function<void(std::size_t begin, std::size_t end)>& body);
    // Memory that a job will read, in up to three pieces that count as one sequence of bytes. Of
    // these `total` bytes, thread i of n begins at byte total · i / n.
    struct Reads {
        static constexpr std::size_t pieces_max = 3;
        std::span<const std::byte> pieces[pieces_max];
    };
    static constexpr std::size_t expected_reads_max = 2;
    // Gives a hint, directly after a job: the next jobs start at about `when` and read the memory
    // `reads`. The threads prefetch their share of that memory into their caches where it fits. The
    // threads sleep until shortly before `when` and then spin until shortly after it, so that the
    // job need not wake them. They do not spin where other threads want their cores, or where the
    // pool has few threads. The memory of `reads` may be freed before the job starts.
    void expect_job(TimePoint when, std::span<const Reads> reads = {});

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Returns the grain for parallel_for() of a loop with a cost of `each` per iteration, so that a
// range of iterations costs `range` or more. Both costs have the same unit. A loop that costs less
// than four ranges in total is a single range, which the caller runs: other threads would start too
// late, and where cores are shared they may be delayed for long.
constexpr std::size_t loop_grain(std::size_t count, std::size_t each, std::size_t range) {
    if (count * each < 4 * range) return count;
    return each >= range ? 1 : (range + each - 1) / (each > 0 ? each : 1);
}

// Calls body(i) for each i below `count` on the threads of the pool, in ranges of at least
// loop_grain() iterations.
template <class Body>
void parallel_each(ThreadPool& threads, std::size_t count, std::size_t each, std::size_t range,
                   const Body& body) {
    threads.parallel_for(count, loop_grain(count, each, range),
                         [&](std::size_t i, std::size_t end) {
                             for (; i < end; ++i) body(i);
                         });
}

}  // namespace moex
