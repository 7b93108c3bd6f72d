// Compute threads: the only place where the hub does math in parallel.
// parallel_for() blocks its caller, which works too; nested calls run inline. Threads sleep when
// idle, after a short spin.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

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

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
