#include "hub/dispatch/trust/judge_thread.h"

#include <utility>

#include "protocol/thread_name.h"

namespace moex {

JudgeThread::JudgeThread(const ExpertCompute& compute, Done done)
    : compute_(compute),
      done_(std::move(done)),
      thread_([this] { run(); }) {}

JudgeThread::~JudgeThread() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void JudgeThread::submit(AnswerSample sample) {
    {
        const std::lock_guard lock(mutex_);
        std::deque<AnswerSample>& queue = sample.awaited ? awaited_ : samples_;
        if (sample.awaited || queue.size() < samples_waiting_max) {
            queue.push_back(std::move(sample));
            wake_.notify_one();
            return;
        }
    }
    done_(sample.id, Judgement{});
}

void JudgeThread::run() {
    name_thread("judge");
    for (;;) {
        AnswerSample sample;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return stop_ || !awaited_.empty() || !samples_.empty(); });
            if (stop_) return;
            std::deque<AnswerSample>& queue = awaited_.empty() ? samples_ : awaited_;
            sample = std::move(queue.front());
            queue.pop_front();
        }
        done_(sample.id, judge_answer(sample, compute_));
    }
}

}  // namespace moex
