// Compute threads: the only place where the hub does math in parallel.
// parallel_for() blocks its caller, which works too; nested calls run inline. Threads sleep when
// idle, after a short spin; where the next job's time is known, they are awake when it comes.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "hub/base/clock.h"

namespace moex {

class ThreadPool {
  public:
    // `num_threads` includes the caller of parallel_for; 0 means one per core.
    explicit ThreadPool(std::size_t num_threads = 0);
    ~ThreadPool();
    std::size_t num_threads() const;
    // Into how many ranges a thread's share is cut, so that one that is late leaves some to others.
    // For benches; not while a parallel_for() runs.
    void set_ranges_per_thread(std::size_t count);
    // Runs body(begin, end) over disjoint ranges that cover [0, count), each at least `grain` long
    // where possible. Thread i of n begins with what lies from i / n on, the caller at the front;
    // who is done with its share takes of the others'.
    void parallel_for(std::size_t count, std::size_t grain,
                      const std::function<void(std::size_t begin, std::size_t end)>& body);
    // What a job will read, one piece behind the other: thread i of n begins with what lies from
    // i / n on.
    struct Reads {
        static constexpr std::size_t pieces_max = 3;
        std::span<const std::byte> pieces[pieces_max];
    };
    static constexpr std::size_t expected_reads_max = 2;
    // A hint, right behind a job: the next ones come from about `when` on and read `reads`. Threads
    // bring their share of that into their caches where it fits, sleep until shortly before and
    // look for the job until somewhat later, instead of being woken by it; not where others want
    // their cores, nor where they are few. `reads` may be gone before the job comes.
    void expect_job(TimePoint when, std::span<const Reads> reads = {});

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// A grain for parallel_for(): a round costs `each`, a range shall cost `range` or more, in one
// unit. Rounds that cost less than four ranges together are one range, which their caller does:
// others would be there too late, and where cores are shared they may be kept from it for long.
constexpr std::size_t loop_grain(std::size_t count, std::size_t each, std::size_t range) {
    if (count * each < 4 * range) return count;
    return each >= range ? 1 : (range + each - 1) / (each > 0 ? each : 1);
}

// body(i) for each i below `count`, by threads in ranges of loop_grain().
template <class Body>
void parallel_each(ThreadPool& threads, std::size_t count, std::size_t each, std::size_t range,
                   const Body& body) {
    threads.parallel_for(count, loop_grain(count, each, range),
                         [&](std::size_t i, std::size_t end) {
                             for (; i < end; ++i) body(i);
                         });
}

}  // namespace moex
