#include "hub/dispatch/span/span_client.h"

#include <algorithm>

#include "hub/dispatch/span/span_residual.h"
#include "protocol/text.h"

namespace moex {
namespace {

// The size of a SPAN_KV frame.
constexpr std::uint64_t kv_frame_bytes = 1u << 20;
// A check without an answer is dropped after this time.
constexpr Duration check_within = 30s;
// This number of wrong checks in a row counts as a lie.
constexpr std::uint32_t wrong_max = 2;
constexpr Duration suspended_min = 1s, suspended_max = 60s;

}  // namespace

// A ready span with what the engine's thread knows about it.
struct SpanClient::Span {
    explicit Span(const ReadySpan& ready)
        : span(ready),
          sequences(ready.num_pages, ready.page_tokens) {}

    ReadySpan span;
    SpanSequences sequences;
    SpanTimes away;
    std::uint32_t right = 0;  // right checks since the last failure
    std::uint32_t wrong = 0;  // wrong checks since the last right one
    std::uint64_t steps = 0;  // steps since the last check
    bool checking = false;    // a check is in flight
    bool used = false;        // the newest step used this span
    bool lied = false;
    TimePoint suspended_until{}, probe_at{};
    Duration suspended_for = suspended_min, probe_every{};
};

// A round in flight: the frames of its steps.
struct SpanClient::Sent {
    std::uint32_t span = 0, num_layers = 0, num_rows = 0;
    std::vector<std::uint32_t> steps;
    std::vector<std::uint32_t> rows_of_step;
    std::vector<SpanSequence> sequences;
    TimePoint at{};
    Duration expected{};
};

// A round of a check: its answer is compared with the hub's own.
struct SpanClient::Check {
    Sent sent;
    std::vector<float> x_before, x;
    Bytes kv;
    std::vector<SpanAnswer> answers;  // those that have arrived
    TimePoint answered_at{};
};

class SpanClient::Round : public SpanRound {
  public:
    Round(SpanClient& client, Sent sent) : client_(client), sent_(std::move(sent)) {}
    ~Round() override {
        if (!is_over_) client_.forget(sent_);
    }
    Result<SpanResult> wait(std::stop_token stop) override {
        is_over_ = true;
        return client_.wait(sent_, stop);
    }
    void compare(std::span<const float> x_before, std::span<const float> x, Bytes kv) override {
        is_over_ = true;
        client_.checks_.push_back({std::move(sent_),
                                   {x_before.begin(), x_before.end()},
                                   {x.begin(), x.end()},
                                   std::move(kv),
                                   {},
                                   {}});
    }

  private:
    SpanClient& client_;
    Sent sent_;
    bool is_over_ = false;
};

SpanClient::SpanClient(const SpanOptions& options, std::uint32_t hidden_size,
                       std::shared_ptr<SpanBoard> board, Link link)
    : options_(options),
      hidden_size_(hidden_size),
      board_(std::move(board)),
      link_(std::move(link)) {}
SpanClient::~SpanClient() = default;

SpanClient::Span* SpanClient::find(std::uint32_t id) {
    const auto found = spans_.find(id);
    return found == spans_.end() ? nullptr : &found->second;
}

// Takes over which spans are ready.
void SpanClient::refresh() {
    const std::vector<ReadySpan> ready = board_->ready();
    std::erase_if(spans_, [&](const auto& one) {
        return std::none_of(ready.begin(), ready.end(),
                            [&](const ReadySpan& span) { return span.id == one.first; });
    });
    for (const ReadySpan& span : ready) spans_.try_emplace(span.id, span);
}

// Sends keys and values that the worker lacks, up to a limit. Returns true if it lacks none.
bool SpanClient::bring(Span& span, const SpanBatch& batch) {
    std::uint64_t bytes_left = options_.kv_bytes_at_once;
    const std::uint64_t row_bytes = span_kv_bytes(span.span.num_layers(), 1, options_.kv_size);
    const std::uint32_t frame_rows = span_kv_rows_max(kv_frame_bytes, span.span.num_layers(),
                                                      options_.kv_size);
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
        const SpanSequence& one = batch.sequences[i];
        for (std::uint32_t known = span.sequences.known(one.id); known < one.num_before;) {
            const auto fit = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(bytes_left / row_bytes, frame_rows));
            const std::uint32_t count = std::min(one.num_before - known, fit);
            if (count == 0) return false;
            SpanKv kv{.span = span.span.id,
                      .sequence = one.id,
                      .first = known,
                      .num_rows = count,
                      .num_layers = span.span.num_layers(),
                      .kv_size = options_.kv_size,
                      .rows = Bytes(count * row_bytes)};
            batch.read_kv(i, span.span.first_layer, span.span.end_layer, known, count, kv.rows);
            link_.send(span.span.id, 0, encode_span_kv(kv));
            bytes_left -= count * row_bytes;
            known += count;
            span.sequences.set(one.id, known);
            const std::lock_guard lock(shown_mutex_);
            counters_.kv_rows += count;
        }
    }
    return true;
}

// Decides where a step computes the layers of a span.
SpanUse SpanClient::use_of(Span& span, const SpanBatch& batch) {
    const TimePoint now = now_steady();
    if (!batch.may_leave || span.lied || now < span.suspended_until ||
        !span.sequences.has_room(batch.sequences))
        return SpanUse::here;

    const auto here = here_[{span.span.first_layer, span.span.end_layer}].expected(batch.num_rows),
               away = span.away.expected(batch.num_rows);
    const bool is_proven = span.right >= options_.checks_min, is_measured = here && away,
               is_worth = is_measured && to_ms(*away) <= options_.worth * to_ms(*here);
    if (is_worth) span.probe_every = {};
    if (is_proven && is_worth && ++span.steps % options_.check_period != 0)
        return bring(span, batch) ? SpanUse::away : SpanUse::here;

    // Check the worker, or measure it again.
    if (span.checking || (is_measured && !is_worth && now < span.probe_at)) return SpanUse::here;
    if (!bring(span, batch)) return SpanUse::here;
    span.checking = true;
    if (is_measured && !is_worth) {
        span.probe_every = std::clamp(2 * span.probe_every, options_.probe_min, options_.probe_max);
        span.probe_at = now + span.probe_every;
    }
    return SpanUse::check;
}

std::vector<PlannedSpan> SpanClient::plan(const SpanBatch& batch) {
    settle_checks();
    refresh();
    // Choose a span for each range of layers, wide ranges first: of the spans with the same layers,
    // the one that is used at present, then the one with the better record.
    std::vector<Span*> order;
    for (auto& [id, span] : spans_) order.push_back(&span);
    std::stable_sort(order.begin(), order.end(), [](const Span* a, const Span* b) {
        const auto rank = [](const Span* one) {
            return std::tuple(one->span.num_layers(), now_steady() >= one->suspended_until,
                              one->used, one->right);
        };
        return rank(a) > rank(b);
    });

    std::vector<PlannedSpan> plan;
    for (Span* const span : order) {
        const bool is_apart = std::all_of(plan.begin(), plan.end(), [&](const PlannedSpan& one) {
            return one.end_layer <= span->span.first_layer ||
                   one.first_layer >= span->span.end_layer;
        });
        const SpanUse use = is_apart ? use_of(*span, batch) : SpanUse::here;
        span->used = use == SpanUse::away;
        if (is_apart)
            plan.push_back({span->span.id, span->span.first_layer, span->span.end_layer, use});
        if (use != SpanUse::here) continue;
        for (const SpanSequence& one : batch.sequences)
            span->sequences.at_most(one.id, one.num_before);
    }
    std::sort(plan.begin(), plan.end(), [](const PlannedSpan& a, const PlannedSpan& b) {
        return a.first_layer < b.first_layer;
    });
    show();
    return plan;
}

std::unique_ptr<SpanRound> SpanClient::submit(const PlannedSpan& planned,
                                              std::span<const SpanSequence> sequences,
                                              std::span<const float> x) {
    Sent sent{.span = planned.id,
              .num_layers = planned.end_layer - planned.first_layer,
              .sequences = {sequences.begin(), sequences.end()},
              .at = now_steady()};
    Span* const span = find(planned.id);
    MOEX_CHECK(span != nullptr, "a span of this step is known until the next step");

    // Cut the rows into frames.
    std::vector<SpanSequence> left(sequences.begin(), sequences.end());
    std::size_t at = 0;
    for (auto next = left.begin(); next != left.end();) {
        SpanStep step{.step = ++last_step_ == 0 ? ++last_step_ : last_step_, .span = planned.id};
        std::uint32_t rows = 0;
        while (next != left.end() && rows < span->span.rows_max) {
            const std::uint32_t count = std::min(next->num_rows, span->span.rows_max - rows);
            step.sequences.push_back({next->id, next->num_before, count});
            rows += count;
            next->num_before += count;
            next->num_rows -= count;
            if (next->num_rows == 0) ++next;
        }
        step.x.assign(x.begin() + static_cast<std::ptrdiff_t>(at),
                      x.begin() + static_cast<std::ptrdiff_t>(at + rows * hidden_size_));
        at += std::size_t{rows} * hidden_size_;
        board_->expect(step.step, planned.id);
        link_.send(planned.id, step.step, encode_span_step(step, hidden_size_));
        sent.steps.push_back(step.step);
        sent.rows_of_step.push_back(rows);
        sent.num_rows += rows;
    }
    for (const SpanSequence& one : sequences)
        span->sequences.set(one.id, one.num_before + one.num_rows);
    sent.expected = span->away.expected(sent.num_rows).value_or(options_.late_max);
    return std::make_unique<Round>(*this, std::move(sent));
}

void SpanClient::forget(const Sent& sent) {
    for (const std::uint32_t step : sent.steps) board_->forget(step);
    if (Span* const span = find(sent.span)) span->checking = false;
}

// The answers of this span are not asked for a while. Then it is checked once more.
void SpanClient::suspend(std::uint32_t id) {
    Span* const span = find(id);
    if (span == nullptr) return;
    span->suspended_until = now_steady() + span->suspended_for;
    span->suspended_for = std::min(2 * span->suspended_for, suspended_max);
    span->right = std::min(span->right, options_.checks_min - 1);
}

void SpanClient::lie(std::uint32_t id, std::string why) {
    {
        const std::lock_guard lock(shown_mutex_);
        ++counters_.lies;
    }
    if (Span* const span = find(id)) span->lied = true;
    link_.lied(id, std::move(why));
}

// Joins the answers of a round's frames. An answer of another shape counts as a lie.
Result<SpanResult> SpanClient::joined(const Sent& sent, std::vector<SpanAnswer> answers) {
    for (std::size_t i = 0; i < answers.size(); ++i) {
        const SpanAnswer& one = answers[i];
        if (one.verdict != SpanVerdict::done) {
            // The worker lacks tokens or room: what it knows is not what was assumed.
            if (Span* const span = find(sent.span))
                for (const SpanSequence& sequence : sent.sequences)
                    span->sequences.set(sequence.id, 0);
            if (one.verdict != SpanVerdict::unknown_sequence) suspend(sent.span);
            return Error{ErrorCode::unavailable, text("the span's worker refused a step: ",
                                                      static_cast<unsigned>(one.verdict))};
        }
        if (one.num_rows != sent.rows_of_step[i] || one.num_layers != sent.num_layers ||
            one.kv_size != options_.kv_size) {
            lie(sent.span, "an answer has another shape than the step");
            return Error{ErrorCode::bad_field, "an answer has another shape than the step"};
        }
    }

    SpanResult result;
    const std::size_t row_bytes = span_kv_bytes(1, 1, options_.kv_size);
    for (const SpanAnswer& one : answers)
        result.x.insert(result.x.end(), one.x.begin(), one.x.end());
    for (std::size_t layer = 0; layer < sent.num_layers; ++layer)
        for (const SpanAnswer& one : answers) {
            const ByteView rows = ByteView(one.kv).subspan(layer * one.num_rows * row_bytes,
                                                           one.num_rows * row_bytes);
            result.kv.insert(result.kv.end(), rows.begin(), rows.end());
        }
    if (const Span* const span = find(sent.span)) {
        result.worker = span->span.worker;
        result.proven = span->right >= options_.checks_min;
    }
    return result;
}

Result<SpanResult> SpanClient::wait(const Sent& sent, const std::stop_token& stop) {
    const Duration late = std::clamp(4 * sent.expected, options_.late_min, options_.late_max);
    const TimePoint deadline = sent.at + late;
    std::vector<SpanAnswer> answers;
    TimePoint last{};
    Error failure{ErrorCode::timeout, text("no answer of a span within ", to_ms(late), " ms")};
    for (const std::uint32_t step : sent.steps) {
        auto answer = board_->wait(step, deadline, stop);
        if (!answer && stop.stop_requested())
            failure = {ErrorCode::cancelled, "the step was stopped"};
        if (answer && !answer->answer.ok()) failure = answer->answer.error();
        if (!answer || !answer->answer.ok()) break;
        last = std::max(last, answer->at);
        answers.push_back(std::move(*answer->answer));
    }
    forget(sent);
    if (answers.size() < sent.steps.size()) {
        if (failure.code == ErrorCode::cancelled) return failure;
        suspend(sent.span);
        const std::lock_guard lock(shown_mutex_);
        ++(failure.code == ErrorCode::timeout ? counters_.late : counters_.failed);
        return failure;
    }

    Result<SpanResult> result = joined(sent, std::move(answers));
    Span* const span = find(sent.span);
    if (result.ok() && span != nullptr) {
        span->away.record(sent.num_rows, last - sent.at);
        span->suspended_for = suspended_min;
    }
    const std::lock_guard lock(shown_mutex_);
    ++(result.ok() ? counters_.trips : counters_.failed);
    return result;
}

// Returns how an answer differs from what the hub computed; empty if it is right.
std::string SpanClient::difference_of(const Check& check, const SpanResult& answer) {
    const double most = span_residual({.hidden_size = hidden_size_,
                                       .kv_size = options_.kv_size,
                                       .num_layers = check.sent.num_layers,
                                       .num_rows = check.sent.num_rows},
                                      check.x_before, {check.x, check.kv}, {answer.x, answer.kv})
                            .largest();
    {
        const std::lock_guard lock(shown_mutex_);
        ++counters_.checks;
        counters_.difference_max = std::max(counters_.difference_max, most);
    }
    if (most <= options_.tolerance) return {};
    return text("an answer of a span differs by ", most, " of its size, at most ",
                options_.tolerance, " is right");
}

// Returns true if the check is over.
bool SpanClient::settle(Check& check) {
    while (check.answers.size() < check.sent.steps.size()) {
        auto answer = board_->poll(check.sent.steps[check.answers.size()]);
        if (!answer) {
            const bool is_late = now_steady() > check.sent.at + check_within;
            if (is_late) suspend(check.sent.span);
            return is_late || find(check.sent.span) == nullptr;
        }
        if (!answer->answer.ok()) return true;
        check.answered_at = std::max(check.answered_at, answer->at);
        check.answers.push_back(std::move(*answer->answer));
    }
    const Result<SpanResult> answer = joined(check.sent, std::move(check.answers));
    Span* const span = find(check.sent.span);
    if (!answer.ok() || span == nullptr) return true;
    span->away.record(check.sent.num_rows, check.answered_at - check.sent.at);
    std::string why = difference_of(check, *answer);
    if (why.empty()) {
        ++span->right;
        span->wrong = 0;
        return true;
    }
    // One row may differ far where a router is near a tie. Two checks in a row do not.
    span->right = 0;
    if (++span->wrong >= wrong_max) lie(check.sent.span, std::move(why));
    return true;
}

void SpanClient::settle_checks() {
    std::erase_if(checks_, [&](Check& check) {
        if (!settle(check)) return false;
        forget(check.sent);
        return true;
    });
}

void SpanClient::record(const PlannedSpan& span, std::uint32_t num_rows, Duration took) {
    // The time at a worker is measured where its answer arrives.
    if (span.use != SpanUse::away) here_[{span.first_layer, span.end_layer}].record(num_rows, took);
}

void SpanClient::ended(std::uint64_t sequence) {
    for (auto& [id, span] : spans_)
        if (span.sequences.end(sequence)) link_.send(id, 0, encode_span_end({sequence}));
}

void SpanClient::show() {
    std::vector<SpanView> views;
    for (const auto& [id, span] : spans_) {
        SpanView view{.worker = span.span.worker,
                      .first_layer = span.span.first_layer,
                      .end_layer = span.span.end_layer,
                      .proven = span.right >= options_.checks_min,
                      .used = span.used};
        const auto here = here_[{view.first_layer, view.end_layer}].expected(1),
                   away = span.away.expected(1);
        if (here) view.here_ms = to_ms(*here);
        if (away) view.away_ms = to_ms(*away);
        views.push_back(view);
    }
    const std::lock_guard lock(shown_mutex_);
    views_ = std::move(views);
}

SpanCounters SpanClient::counters() const {
    const std::lock_guard lock(shown_mutex_);
    return counters_;
}
std::vector<SpanView> SpanClient::views() const {
    const std::lock_guard lock(shown_mutex_);
    return views_;
}

}  // namespace moex
