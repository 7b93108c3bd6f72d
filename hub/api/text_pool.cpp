#include "hub/api/text_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "hub/base/log.h"
#include "hub/base/num_cores.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

// Priority of threads for long texts. It is below the priority of the model's threads, which all
// clients wait for: a thread for long texts gets about a tenth of the processor time of a thread of
// the model.
constexpr int long_nice = 10;
constexpr Duration come_back_after = 1s;

struct Job {
    std::uint64_t bytes = 0;
    std::function<void()> run;
};

// The waiting jobs of one lane (short or long texts): a queue for each client, and the clients in
// round-robin order.
class Lane {
  public:
    void push(const std::string& client, Job job) {
        std::deque<Job>& queue = queues_[client];
        if (queue.empty()) turns_.push_back(client);
        queue.push_back(std::move(job));
    }
    bool empty() const { return turns_.empty(); }

    // Removes the oldest job of the next client; this client moves to the end of the round-robin
    // order.
    std::pair<std::string, Job> pop() {
        std::string client = std::move(turns_.front());
        turns_.pop_front();

        const auto found = queues_.find(client);
        Job job = std::move(found->second.front());
        found->second.pop_front();

        if (found->second.empty())
            queues_.erase(found);
        else
            turns_.push_back(client);
        return {std::move(client), std::move(job)};
    }

  private:
    std::map<std::string, std::deque<Job>> queues_;  // jobs of each client; no queue is empty
    std::list<std::string> turns_;  // clients in round-robin order: each key of `queues_` once
};

std::uint32_t threads_of(std::uint32_t wanted) {
    if (wanted > 0) return wanted;
    return std::clamp(num_cores() / 4, 1u, 4u);
}

}  // namespace

struct TextPool::State {
    struct Waiting {
        std::size_t jobs = 0;
        std::uint64_t bytes = 0;
    };

    TextPoolOptions options;
    mutable std::mutex mutex;
    std::condition_variable wake;
    Lane short_lane, long_lane;
    Waiting all;
    std::map<std::string, Waiting> by_client;  // waiting jobs of each client; no entry is zero
    bool stopping = false;
    std::vector<std::thread> threads;

    void work(Lane& lane);
    void count_out(const std::string& client, std::uint64_t bytes);
};

TextPool::TextPool(TextPoolOptions options) : state_(std::make_unique<State>()) {
    State& state = *state_;
    state.options = options;
    state.threads.emplace_back([&state] { state.work(state.short_lane); });

    for (std::uint32_t i = 0; i < threads_of(options.long_threads); ++i)
        state.threads.emplace_back([&state] {
            // On Linux this sets the priority of the calling thread; lowering the priority needs no
            // privileges.
            (void)::setpriority(PRIO_PROCESS, 0, long_nice);
            state.work(state.long_lane);
        });
}

TextPool::~TextPool() { stop(); }

void TextPool::stop() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->stopping = true;
    }
    state_->wake.notify_all();
    for (std::thread& thread : state_->threads) thread.join();
    state_->threads.clear();
}

Checked<void> TextPool::submit(const std::string& client, std::uint64_t bytes,
                               std::function<void()> job) {
    State& state = *state_;
    const TextPoolOptions& options = state.options;
    {
        const std::lock_guard lock(state.mutex);
        if (state.stopping)
            return refuse_for_now(503, "the hub stops and takes no new work", "unavailable", 2s);

        const auto found = state.by_client.find(client);
        const State::Waiting own = found == state.by_client.end() ? State::Waiting{}
                                                                  : found->second;

        if (own.jobs >= options.jobs_per_client_max ||
            own.bytes + bytes > options.bytes_per_client_max)
            return refuse_for_now(429, "too many texts of this client wait to be read",
                                  "text_queue_full", come_back_after);
        if (state.all.jobs >= options.jobs_max || state.all.bytes + bytes > options.bytes_max)
            return refuse_for_now(503, "too many texts wait to be read", "text_queue_full",
                                  come_back_after);

        state.by_client[client] = {own.jobs + 1, own.bytes + bytes};
        ++state.all.jobs;
        state.all.bytes += bytes;
        Lane& lane = bytes <= options.short_bytes_max ? state.short_lane : state.long_lane;
        lane.push(client, {bytes, std::move(job)});
    }
    // Wake all threads, since any thread may serve the lane of this job.
    state.wake.notify_all();
    return {};
}

std::size_t TextPool::num_waiting() const {
    const std::lock_guard lock(state_->mutex);
    return state_->all.jobs;
}

void TextPool::State::count_out(const std::string& client, std::uint64_t bytes) {
    --all.jobs;
    all.bytes -= bytes;

    const auto found = by_client.find(client);
    found->second.bytes -= bytes;
    if (--found->second.jobs == 0) by_client.erase(found);
}

void TextPool::State::work(Lane& lane) {
    name_thread("text");
    std::unique_lock lock(mutex);
    for (;;) {
        wake.wait(lock, [&] { return stopping || !lane.empty(); });
        if (stopping) return;
        auto [client, job] = lane.pop();
        count_out(client, job.bytes);

        lock.unlock();
        try {
            job.run();
        } catch (const std::exception& failure) {
            log_error("api: work on a text failed", kv("error", failure.what()));
        }
        job.run = nullptr;  // releases the job's responder, which may send an answer then
        lock.lock();
    }
}

}  // namespace moex
