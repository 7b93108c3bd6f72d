// What the engine's thread and the dispatch strand share about spans: which spans are ready, and
// the answers of steps in flight. The strand writes both; the engine's thread reads and waits.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/dispatch/ids.h"
#include "protocol/span_messages.h"

namespace moex {

// A span that a worker has loaded.
struct ReadySpan {
    std::uint32_t id = 0;  // unique in this hub
    WorkerId worker = 0;
    std::string worker_key;  // its record of right answers; may be empty
    std::uint32_t first_layer = 0, end_layer = 0;
    std::uint32_t num_pages = 0, page_tokens = 0, rows_max = 0;
    std::uint32_t sequences_max = 0;  // 0: the pages are the only limit
    std::uint32_t num_layers() const { return end_layer - first_layer; }
};

class SpanBoard {
  public:
    virtual ~SpanBoard() = default;
    // ---- called on the strand
    void add(const ReadySpan& span);
    // Removes a span. Its steps in flight fail.
    void remove(std::uint32_t span);
    // No further step uses the span. Its steps in flight are answered.
    void retire(std::uint32_t span);
    // Ends a step. An unknown step has no effect: the engine does not wait for it any more.
    // `bytes`: the size of the answer's frame.
    void answer(std::uint32_t step, TimePoint now, Result<SpanAnswer> answer,
                std::uint64_t bytes = 0);

    // Returns true if the newest step used the span.
    bool is_used(std::uint32_t span) const;
    // Returns true if one of the newest `recent_steps` steps used the span. A step with many rows
    // may use none for a while. No span counts as used once there was no step for `idle_after`.
    bool was_used(std::uint32_t span) const;
    // Notices how long there was no step. Called at every heartbeat.
    void note_time(TimePoint now);
    // Returns true if the newest step could have used the span: its holder answers, and its answers
    // were found right.
    bool can_take_over(std::uint32_t span) const;
    static constexpr std::uint64_t recent_steps = 64;
    static constexpr Duration idle_after = std::chrono::seconds(60);

    // ---- called on the engine's thread
    std::vector<ReadySpan> ready() const;
    // Reports the spans that the newest step uses, and those that could answer it.
    void set_used(std::set<std::uint32_t> used, std::set<std::uint32_t> able = {});
    // Announces a step, before its frame is sent.
    void expect(std::uint32_t step, std::uint32_t span);
    struct Answer {
        TimePoint at{};
        Result<SpanAnswer> answer;
        std::uint64_t bytes = 0;  // of its frame
    };
    // Waits for the answer of a step. Returns nullopt at the deadline, or when `stop` is requested.
    virtual std::optional<Answer> wait(std::uint32_t step, TimePoint deadline,
                                       const std::stop_token& stop);
    // Takes the answer of a step if it has arrived.
    std::optional<Answer> poll(std::uint32_t step);
    void forget(std::uint32_t step);

  private:
    struct Step {
        std::uint32_t span = 0;
        std::optional<Answer> answer;
    };
    std::optional<Answer> take(std::uint32_t step);

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<ReadySpan> ready_;
    std::set<std::uint32_t> used_, able_;
    std::uint64_t num_steps_ = 0;
    // The number of steps at the newest note_time() that found a new one, and its time.
    std::uint64_t noted_steps_ = 0;
    TimePoint noted_at_{};
    std::map<std::uint32_t, std::uint64_t> used_in_;  // by span: the number of the step
    std::map<std::uint32_t, Step> steps_;
};

}  // namespace moex
