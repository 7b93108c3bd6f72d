// The thread that judges answers, so that no strand computes experts. Samples of answers that a
// round waits for are judged first. Samples of answers that already count are dropped when too many
// samples are pending.
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
    // `done` is called on the judge's thread, once for each submitted sample. Samples that are
    // dropped at destruction are an exception.
    using Done = std::function<void(std::uint64_t id, Judgement judgement)>;
    JudgeThread(const ExpertCompute& compute, Done done);
    // Drops the samples that are still pending.
    ~JudgeThread();

    // Queues the sample. If the queue has no room for it, the sample is judged undecided at once,
    // on the caller's thread. Any thread may call this function.
    void submit(AnswerSample sample);
    // most pending samples of answers that already count
    static constexpr std::size_t samples_waiting_max = 256;

  private:
    void run();

    const ExpertCompute& compute_;
    const Done done_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<AnswerSample> awaited_, samples_;
    bool stop_ = false;
    std::thread thread_;  // the thread is the last member, because it uses the members above
};

}  // namespace moex
