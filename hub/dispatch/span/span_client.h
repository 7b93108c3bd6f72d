// The engine's side of spans: decides for each step which spans workers compute, sends rows and
// missing keys and values, waits for answers, and compares those of checks with the hub's own.
//
// A new holder is checked first: it computes copies of steps that the hub computes anyway, and its
// answers are used after `checks_min` right ones. Later one step in `check_period` is checked. The
// measured times of both sides decide: a span is used where it is predicted to be faster than the
// hub's own way, which may be its own layers or rounds of experts. A span that is not used is
// measured again at growing intervals.
//
// Limits: a check compares rows with a tolerance that covers the arithmetic of the hub, so a lie
// within that tolerance is not found. Where two workers hold the same layers, one of them is used;
// the other one gets keys and values when it takes over.
// Owner: the engine's thread. counters() and views() may be called on any thread.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "hub/dispatch/span/span_board.h"
#include "hub/dispatch/span/span_options.h"
#include "hub/dispatch/span/span_sequences.h"
#include "hub/dispatch/span/span_times.h"
#include "hub/engine/span_backend.h"

namespace moex {

struct SpanCounters {
    std::uint64_t trips = 0;   // rounds that were answered by a worker and used
    std::uint64_t checks = 0;  // rounds that were compared with the hub's own
    // rounds that the hub computed after all, because the answer was late, or was refused or lost
    std::uint64_t late = 0, failed = 0;
    std::uint64_t lies = 0;     // answers that differed too much
    std::uint64_t kv_rows = 0;  // rows of keys and values that were sent to workers
    double difference_max = 0;  // largest difference of a check, as a share of the values
};

// A ready span, for people.
struct SpanView {
    WorkerId worker = 0;
    std::uint32_t first_layer = 0, end_layer = 0;
    bool proven = false, used = false;
    double here_ms = 0, away_ms = 0;  // expected times of a step with one row; 0: not measured
};

class SpanClient : public SpanBackend {
  public:
    // Both functions may be called on the engine's thread, and return at once.
    struct Link {
        // Sends a frame to the holder of the span. `step` is the step of SPAN_STEP; 0: the frame
        // has no answer.
        std::function<void(std::uint32_t span, std::uint32_t step, Bytes frame)> send;
        // The holder of the span gave a wrong answer.
        std::function<void(std::uint32_t span, std::string why)> lied;
    };
    SpanClient(const SpanOptions& options, std::uint32_t hidden_size,
               std::shared_ptr<SpanBoard> board, Link link);
    ~SpanClient() override;

    std::vector<PlannedSpan> plan(const SpanBatch& batch) override;
    std::unique_ptr<SpanRound> submit(const PlannedSpan& span,
                                      std::span<const SpanSequence> sequences,
                                      std::span<const float> x) override;
    void record(const PlannedSpan& span, std::uint32_t num_rows, Duration took) override;
    void ended(std::uint64_t sequence) override;

    SpanCounters counters() const;
    std::vector<SpanView> views() const;

  private:
    struct Span;
    class Round;
    struct Sent;
    struct Check;
    using Range = std::pair<std::uint32_t, std::uint32_t>;

    void refresh();
    void settle_checks();
    bool settle(Check& check);
    SpanUse use_of(Span& span, const SpanBatch& batch);
    bool bring(Span& span, const SpanBatch& batch);
    Span* find(std::uint32_t id);
    void suspend(std::uint32_t id);
    void lie(std::uint32_t id, std::string why);
    Result<SpanResult> wait(const Sent& sent, const std::stop_token& stop);
    Result<SpanResult> joined(const Sent& sent, std::vector<SpanAnswer> answers);
    std::string difference_of(const Check& check, const SpanResult& answer);
    void forget(const Sent& sent);
    void show();

    const SpanOptions options_;
    const std::uint32_t hidden_size_;
    const std::shared_ptr<SpanBoard> board_;
    const Link link_;
    std::map<std::uint32_t, Span> spans_;
    std::map<Range, SpanTimes> here_;  // times of the hub's own way
    std::vector<Check> checks_;
    std::uint32_t last_step_ = 0;

    mutable std::mutex shown_mutex_;
    SpanCounters counters_;
    std::vector<SpanView> views_;
};

}  // namespace moex
