// The engine's side of spans: decides for each step which spans workers compute, sends rows and
// missing keys and values, waits for answers, and compares those of checks with the hub's own.
//
// A new holder is checked first: it computes copies of steps that the hub computes anyway. Later a
// share of the steps is checked (span_trust.h). The measured times of both sides decide: a span is
// used where it is predicted to be faster than the hub's own way, which may be its own layers or
// rounds of experts. Both are measured by the number of rows of a step, over all its micro-batches,
// once for each number to the next power of two, unless other numbers decide. A span that is not
// used is measured again at growing intervals; until its holder has a record, at the shortest one,
// so that people see soon whether its answers are right.
//
// A layer with a gated delta rule has a state instead of keys and values. A worker whose states are
// not those of the text gets all of them at once, and then computes copies of the steps until it
// has answered one, so that no answer waits for the transfer. A standby computes copies while it is
// checked. A standby that has missed steps cannot take over, and the hub computes the layers.
//
// Where two workers hold the same layers, one of them is used. The other one is a standby: it gets
// keys and values beside, and computes the same step where that step is a check. A new standby is
// also compared with the answers that are used, of a holder with a record, so that it is proven and
// measured before it is needed; that costs the hub nothing. Where the two differ, the hub computes
// the next step itself and finds out who is wrong. A holder that did not answer comes behind the
// standby until it answers again, and the standby is asked at once for the same rows.
//
// Limits: a check compares rows with a tolerance that covers the arithmetic of the hub, so a lie
// within that tolerance is not found. Differences beyond it that another choice of experts explains
// end the use of the holder's spans, but it is not banned for them.
// Owner: the engine's thread. counters() and views() may be called on any thread.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <string_view>

#include "hub/dispatch/span/span_board.h"
#include "hub/dispatch/span/span_options.h"
#include "hub/dispatch/span/span_residual.h"
#include "hub/dispatch/span/span_sequences.h"
#include "hub/dispatch/span/span_times.h"
#include "hub/dispatch/span/span_trust.h"
#include "hub/engine/span_backend.h"

namespace moex {

struct SpanCounters {
    std::uint64_t trips = 0;  // rounds that were answered by a worker and used
    // answers that were compared with the hub's own, or with the one that is used
    std::uint64_t checks = 0;
    std::uint64_t wrong = 0;  // those among them that differed too much
    // rounds that the hub computed after all, because the answer was late, or was refused or lost
    std::uint64_t late = 0, failed = 0;
    std::uint64_t lies = 0;       // workers that were found to lie
    std::uint64_t set_aside = 0;  // workers whose answers differ too often, though no lie is proven
    std::uint64_t disputes = 0;   // standbys' answers that differed from the one that was used
    std::uint64_t kv_rows = 0;    // rows of keys and values that were sent to workers
    // Bytes of frames: steps and keys and values to workers, answers of steps from workers; and the
    // rows of the steps that were sent, and of the answers that arrived.
    std::uint64_t step_bytes = 0, kv_bytes = 0, answer_bytes = 0;
    std::uint64_t step_rows = 0, answer_rows = 0;
    std::uint64_t states = 0;   // recurrent states of sequences that were sent to a worker
    double difference_max = 0;  // largest difference of a check, as a share of the values
};

// A ready span, for people.
struct SpanView {
    WorkerId worker = 0;
    std::uint32_t first_layer = 0, end_layer = 0;
    bool proven = false;
    bool used = false;                // in the newest step
    bool standby = false;             // another worker's span with the same layers comes first
    double here_ms = 0, away_ms = 0;  // expected times of a step with one row; 0: not measured
};

class SpanClient : public SpanBackend {
  public:
    // Both functions may be called on the engine's thread, and return at once.
    struct Link {
        // Sends a frame to the holder of the span. `step` is the step of SPAN_STEP; 0: the frame
        // has no answer.
        std::function<void(std::uint32_t span, std::uint32_t step, Bytes frame)> send;
        // The holder of the span gave wrong answers.
        std::function<void(std::uint32_t span, std::string why)> lied;
        // The answers of the holder differ too often from the hub's, as honest ones may.
        std::function<void(std::uint32_t span, std::string why)> set_aside;
        // The holder of the span did not answer a step in time that was sent at `sent_at`.
        std::function<void(std::uint32_t span, TimePoint sent_at)> late;
    };
    SpanClient(const SpanOptions& options, std::uint32_t hidden_size,
               std::shared_ptr<SpanBoard> board, Link link);
    ~SpanClient() override;

    std::vector<PlannedSpan> plan(const SpanBatch& batch) override;
    std::unique_ptr<SpanRound> submit(const PlannedSpan& span,
                                      std::span<const SpanSequence> sequences,
                                      std::span<const float> x) override;
    std::unique_ptr<SpanRound> submit_again(const PlannedSpan& span, const SpanBatch& batch,
                                            std::span<const float> x) override;
    void record(const PlannedSpan& span, std::uint32_t num_rows, Duration took) override;
    void ended(std::uint64_t sequence) override;
    void kept(std::uint64_t sequence) override;
    void resumed(std::uint64_t sequence, std::uint32_t num_tokens) override;
    // Lets the workers forget the kept sequences that ended `kept_after_end` ago.
    void forget_ended();

    SpanCounters counters() const;
    std::vector<SpanView> views() const;

  private:
    static constexpr Duration suspended_min = 1s, suspended_max = 60s;
    // A ready span with what the engine's thread knows about it.
    struct Span {
        Span(const ReadySpan& ready, SpanTrust& record, std::uint32_t num_recurrent)
            : span(ready),
              num_recurrent(num_recurrent),
              trust(record),
              sequences(ready.num_pages, ready.page_tokens, ready.sequences_max) {}

        bool is_recurrent() const { return num_recurrent > 0; }

        ReadySpan span;
        const std::uint32_t num_recurrent;  // layers with a gated delta rule
        SpanTrust& trust;
        SpanSequences sequences;
        SpanTimes away;
        bool checking = false;  // a check is in flight
        bool used = false;      // the newest step used this span
        bool standby = false;
        bool is_silent = false;  // the newest step was not answered
        // It differed from the span that is used, and the hub has not judged it yet.
        bool is_disputed = false;
        // The worker got states before the step `state_step`, and has answered none from there on.
        bool gets_state = false;
        std::uint32_t state_step = 0;
        // The next answer that waits behind no states measures the time of the span.
        bool wants_sample = false;
        std::uint32_t refused_in_a_row = 0;  // steps that it lacked tokens for
        TimePoint suspended_until{}, probe_at{};
        Duration suspended_for = suspended_min, probe_every{};
    };
    // A round in flight: the frames of its steps.
    struct Sent {
        std::uint32_t span = 0, first_layer = 0, end_layer = 0, num_rows = 0;
        std::uint32_t num_layers() const { return end_layer - first_layer; }
        std::uint32_t step_rows = 0;  // of all micro-batches of the engine's step
        std::vector<std::uint32_t> steps;
        std::vector<std::uint32_t> rows_of_step;
        std::vector<SpanSequence> sequences;
        TimePoint at{};
        Duration expected{};
        bool is_behind_state = false;  // the answer waits until a state has arrived
    };
    // A round of a check: its answer is compared with the hub's own, or with that of the span
    // `used`.
    struct Check {
        Sent sent;
        std::uint32_t used = 0;  // 0: with the hub's own
        std::vector<float> x_before, x;
        Bytes kv;
        std::vector<SpanAnswer> answers;  // those that have arrived
        TimePoint answered_at{};
    };
    class Round;
    using Range = std::pair<std::uint32_t, std::uint32_t>;

    void refresh();
    void settle_checks();
    bool settle(Check& check);
    SpanTrust& record_of(const ReadySpan& span);
    // The result of a comparison of a span with the hub's own way.
    enum class Verdict : std::uint8_t { faster, slower, unknown };
    Verdict verdict_of(const Span& span, const SpanBatch& batch);
    SpanUse use_of(Span& span, const SpanBatch& batch);
    bool checks_with_weights(const Span& span, const SpanBatch& batch);
    bool bring(Span& span, const SpanBatch& batch, std::uint64_t bytes_max);
    bool bring_states(Span& span, const SpanBatch& batch);
    bool drop_ended(Span& span, TimePoint before);
    bool make_room(Span& span, std::span<const SpanSequence> sequences);
    bool has_states(const Span& span, std::span<const SpanSequence> sequences) const;
    bool takes_check(Span& span, const SpanBatch& batch, PlannedSpan& first);
    void stand_by(Span& span, const SpanBatch& batch, const PlannedSpan& first);
    Sent send(Span& span, std::uint32_t step_rows, std::span<const SpanSequence> sequences,
              std::span<const float> x);
    Span* find(std::uint32_t id);
    void suspend(std::uint32_t id);
    void judge(std::uint32_t id, SpanFinding finding, std::string_view why);
    void dispute(Span& standby, std::uint32_t used);
    void answered(Span& span, const Sent& sent, Duration took);
    void doubt(const Sent& sent);
    std::uint64_t state_bytes(const Span& span, std::span<const SpanSequence> sequences) const;
    bool has_many_checks(const Span& span) const;
    void end_record(Span& span, SpanEnd end, std::string_view why);
    void settle_failed(Check& check, const Error& failure);
    Result<SpanResult> wait(const Sent& sent, const std::stop_token& stop);
    void compare(std::vector<Sent> sent, std::span<const float> x_before, std::span<const float> x,
                 const Bytes& kv, std::uint32_t used);
    Result<SpanResult> joined(const Sent& sent, std::vector<SpanAnswer> answers);
    SpanShape shape_of(const Sent& sent) const;
    double difference_of(const Check& check, const SpanResult& answer);
    void forget(const Sent& sent);
    void show();

    const SpanOptions options_;
    const std::uint32_t hidden_size_;
    const std::shared_ptr<SpanBoard> board_;
    const Link link_;
    std::mt19937_64 random_;
    std::map<std::string, SpanTrust> records_;  // by worker key
    std::map<std::uint32_t, Span> spans_;
    // of the newest plan: the standbys that compute the step of a span, too, to be compared
    std::map<std::uint32_t, std::vector<std::uint32_t>> beside_;
    std::map<Range, SpanTimes> here_;  // times of the hub's own way
    std::vector<Check> checks_;
    std::uint32_t last_step_ = 0;

    mutable std::mutex shown_mutex_;
    SpanCounters counters_;
    std::vector<SpanView> views_;
};

}  // namespace moex
