// The thread on which answers are judged, so that no strand computes experts. What an answer waits
// for goes first; samples of what has left already are dropped when too many wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "hub/dispatch/trust/answer_judge.h"

namespace moex {

class JudgeThread {
  public:
    // `done` runs on the judge's thread, once for each sample that was not dropped by the end.
    using Done = std::function<void(std::uint64_t id, Judgement judgement)>;
    JudgeThread(const ExpertCompute& compute, Done done);
    // Samples that wait still are dropped.
    ~JudgeThread();

    // From any thread. One that finds no place is judged undecided at once, on this thread.
    void submit(AnswerSample sample);
    static constexpr std::size_t samples_waiting_max = 256;  // not awaited

  private:
    void run();

    const ExpertCompute& compute_;
    const Done done_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<AnswerSample> awaited_, samples_;
    bool stop_ = false;
    std::thread thread_;  // last: it uses the members above
};

}  // namespace moex
