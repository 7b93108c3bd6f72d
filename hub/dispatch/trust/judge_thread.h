// The thread on which answers are judged, so that no strand computes experts. Samples that hold
// back an answer are judged first. Samples of answers that already count are dropped when too many
// are pending.
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
    // `done` runs on the judge's thread, once for each sample that was not dropped at the end.
    using Done = std::function<void(std::uint64_t id, Judgement judgement)>;
    JudgeThread(const ExpertCompute& compute, Done done);
    // Drops the pending samples.
    ~JudgeThread();

    // Any thread. A sample for which there is no room is judged undecided at once, on the caller's
    // thread.
    void submit(AnswerSample sample);
    // limit for samples that hold back no answer
    static constexpr std::size_t samples_waiting_max = 256;

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
