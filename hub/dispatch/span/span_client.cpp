#include "hub/dispatch/span/span_client.h"

#include <algorithm>

#include "protocol/text.h"

namespace moex {
namespace {

// Records of workers that hold no span are forgotten beyond this number.
constexpr std::size_t records_max = 10'000;

}  // namespace

class SpanClient::Round : public SpanRound {
  public:
    // `sent` has the rounds of standbys behind the first, which are checks. `x` are the rows.
    Round(SpanClient& client, std::vector<Sent> sent, std::vector<float> x)
        : client_(client),
          sent_(std::move(sent)),
          x_(std::move(x)) {}
    ~Round() override {
        for (const Sent& one : sent_) client_.forget(one);
    }
    Result<SpanResult> wait(std::stop_token stop) override {
        Result<SpanResult> answer = client_.wait(sent_.front(), stop);
        if (!answer.ok()) return answer;  // the destructor forgets the standbys' rounds
        const std::uint32_t used = sent_.front().span;
        sent_.erase(sent_.begin());
        client_.compare(std::exchange(sent_, {}), x_, answer->x, answer->kv, used);
        return answer;
    }
    void compare(std::span<const float> x_before, std::span<const float> x, Bytes kv) override {
        client_.compare(std::exchange(sent_, {}), x_before, x, kv, 0);
    }

  private:
    SpanClient& client_;
    std::vector<Sent> sent_;
    std::vector<float> x_;  // empty without a standby
};

SpanClient::SpanClient(const SpanOptions& options, std::uint32_t hidden_size,
                       std::shared_ptr<SpanBoard> board, Link link)
    : options_(options),
      hidden_size_(hidden_size),
      board_(std::move(board)),
      link_(std::move(link)),
      random_(options.seed) {}
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
    for (const ReadySpan& span : ready)
        if (!spans_.contains(span.id))
            spans_.try_emplace(span.id, span, record_of(span),
                               options_.num_delta(span.first_layer, span.end_layer));
}

// Returns the record of the worker that holds a span. It outlives the span, so that a worker that
// returns with its key keeps it.
SpanTrust& SpanClient::record_of(const ReadySpan& span) {
    if (records_.size() >= records_max)
        std::erase_if(records_, [&](const auto& record) {
            return std::none_of(spans_.begin(), spans_.end(), [&](const auto& one) {
                return &one.second.trust == &record.second;
            });
        });
    const std::string key = span.worker_key.empty() ? text('#', span.worker) : span.worker_key;
    return records_.try_emplace(key, options_.check).first->second;
}

// Compares the time of a span with the time of the hub's own way. The times of other numbers of
// rows are bounds, since few rows take no longer than many. A worker without a measured time is
// used if a similar number of rows says so, because this measures it. Where the bounds do not
// decide, a check measures both ways; but states that are sent for a check cost too much, and then
// similar numbers of rows decide.
SpanClient::Verdict SpanClient::verdict_of(const Span& span, const SpanBatch& batch) {
    const SpanTimes& here = here_[{span.span.first_layer, span.span.end_layer}];
    const std::uint32_t rows = batch.num_rows;
    using Time = std::optional<Duration>;
    const auto saves = [&](const Time& away, const Time& own) {
        return to_ms(*away) <= options_.worth * to_ms(*own);
    };
    const Time here_min = here.at_least(rows), here_max = here.at_most(rows),
               away_min = span.away.at_least(rows), away = span.away.expected(rows);
    if (away && here_min && saves(away, here_min)) return Verdict::faster;
    if (away_min && here_max && !saves(away_min, here_max)) return Verdict::slower;
    const Time own = here.expected(rows);
    if (!span.is_recurrent() || has_states(span, batch.sequences) || !away || !own)
        return Verdict::unknown;
    return saves(away, own) ? Verdict::faster : Verdict::slower;
}

// Decides where a step computes the layers of a span.
SpanUse SpanClient::use_of(Span& span, const SpanBatch& batch) {
    const TimePoint now = options_.now();
    if (!batch.may_leave || span.trust.has_ended() || now < span.suspended_until ||
        !span.sequences.has_room_without_ended(batch.sequences))
        return SpanUse::here;

    const Verdict verdict = verdict_of(span, batch);
    const bool is_worth = verdict == Verdict::faster;
    if (is_worth) span.probe_every = {};
    // States take long to arrive. Until the worker has answered a step behind them, it computes
    // copies of the steps: its states stay those of the text, and no answer waits for it.
    if (span.is_recurrent() &&
        (span.gets_state || (is_worth && !has_states(span, batch.sequences)))) {
        if (has_many_checks(span) || !bring(span, batch, options_.kv_bytes_at_once))
            return SpanUse::here;
        span.checking = true;
        return SpanUse::check;
    }
    if (is_worth && !span.trust.wants_check(std::uniform_real_distribution<>()(random_)))
        return bring(span, batch, options_.kv_bytes_at_once) ? SpanUse::away : SpanUse::here;

    // Check the worker, or measure it again. One with recurrent states is checked at every step as
    // long as a check is under way or it has no record, so that its state stays that of the text.
    const bool has_record = span.trust.is_proven(),
               keeps_up = span.is_recurrent() && has_states(span, batch.sequences);
    const bool measures = keeps_up && (span.wants_sample || !has_record);
    const bool is_slower = verdict == Verdict::slower;
    if ((span.checking && !keeps_up) || (is_slower && !measures && now < span.probe_at) ||
        (span.is_recurrent() && has_many_checks(span)))
        return SpanUse::here;
    if (!bring(span, batch, options_.kv_bytes_at_once)) return SpanUse::here;
    span.checking = true;
    if (is_slower && now >= span.probe_at) {
        // States that are sent for each check would cost too much.
        const bool is_soon = !has_record && !span.is_recurrent();
        span.probe_every = is_soon ? options_.probe_min
                                   : std::clamp(2 * span.probe_every, options_.probe_min,
                                                options_.probe_max);
        span.probe_at = now + span.probe_every;
    }
    return SpanUse::check;
}

// Checks a standby without a record in the place of the span `first`, if this one is not used
// because it saves no time: then its own checks are rare. Returns false if it does not.
bool SpanClient::takes_check(Span& span, const SpanBatch& batch, PlannedSpan& first) {
    const bool is_slow = verdict_of(*find(first.id), batch) == Verdict::slower;
    if (!is_slow || first.use != SpanUse::here || span.trust.is_proven() ||
        use_of(span, batch) != SpanUse::check)
        return false;
    span.standby = true;
    first.id = span.span.id;
    first.use = SpanUse::check;
    return true;
}

// Prepares a standby of the span `first`: brings keys and values beside the step, and lets it
// compute the step too where the step is a check, or where the standby has no record yet and the
// answer of a holder that has one is used.
void SpanClient::stand_by(Span& span, const SpanBatch& batch, const PlannedSpan& first) {
    span.standby = true;
    if (!batch.may_leave || span.trust.has_ended() || options_.now() < span.suspended_until ||
        !span.sequences.has_room_without_ended(batch.sequences))
        return;
    // A standby with recurrent states computes copies of steps until it has a record. It gets no
    // state beside: the hub's own is that of the text, and continues if the first one leaves.
    const bool keeps_up = span.is_recurrent() && has_states(span, batch.sequences);
    if (span.is_recurrent() && ((span.trust.is_proven() && !keeps_up) || has_many_checks(span)))
        return;
    const bool is_beside_hub = first.use == SpanUse::check,
               is_beside_used = first.use == SpanUse::away && !span.trust.is_proven() &&
                                !span.is_disputed,
               checks = (is_beside_hub || is_beside_used) && (!span.checking || keeps_up);
    const bool lacks = std::any_of(
        batch.sequences.begin(), batch.sequences.end(), [&](const SpanSequence& one) {
            return !span.is_recurrent() &&
                   one.num_before >= span.sequences.known(one.id) + options_.standby_rows;
        });
    if (!checks && !lacks) return;
    const bool knows_all = bring(span, batch, options_.standby_bytes_at_once);
    if (!checks || !knows_all) return;
    span.checking = true;
    beside_[first.id].push_back(span.span.id);
}

std::vector<PlannedSpan> SpanClient::plan(const SpanBatch& batch) {
    settle_checks();
    refresh();
    forget_ended();
    // A step that was stopped before the layers of a check has sent none.
    for (auto& [id, span] : spans_)
        if (std::none_of(checks_.begin(), checks_.end(),
                         [id = id](const Check& check) { return check.sent.span == id; }))
            span.checking = false;
    beside_.clear();
    // Choose a span for each range of layers, wide ranges first: of the spans with the same layers,
    // one that answers, then the one with the better record, then the one that is used at present.
    std::vector<Span*> order;
    for (auto& [id, span] : spans_) order.push_back(&span);
    const TimePoint now = options_.now();
    std::stable_sort(order.begin(), order.end(), [now](const Span* a, const Span* b) {
        const auto rank = [now](const Span* one) {
            return std::tuple(one->span.num_layers(), !one->is_silent, now >= one->suspended_until,
                              one->trust.is_proven(), !one->standby);
        };
        return rank(a) > rank(b);
    });

    std::vector<PlannedSpan> plan;
    for (Span* const span : order) {
        const bool is_apart = std::all_of(plan.begin(), plan.end(), [&](const PlannedSpan& one) {
            return one.end_layer <= span->span.first_layer ||
                   one.first_layer >= span->span.end_layer;
        });
        // Rows that this worker knew from here on are computed again.
        for (const SpanSequence& one : batch.sequences)
            span->sequences.at_most(one.id, one.num_before);
        const SpanUse use = is_apart ? use_of(*span, batch) : SpanUse::here;
        span->used = use == SpanUse::away;
        span->standby = false;
        if (is_apart)
            plan.push_back({span->span.id, span->span.first_layer, span->span.end_layer, use,
                            use == SpanUse::check && checks_with_weights(*span, batch),
                            batch.num_rows});
        for (PlannedSpan& first : plan)
            if (!is_apart && first.first_layer == span->span.first_layer &&
                first.end_layer == span->span.end_layer && !takes_check(*span, batch, first))
                stand_by(*span, batch, first);
    }
    std::sort(plan.begin(), plan.end(), [](const PlannedSpan& a, const PlannedSpan& b) {
        return a.first_layer < b.first_layer;
    });
    std::set<std::uint32_t> used, able;
    for (const PlannedSpan& one : plan)
        if (one.use != SpanUse::here) used.insert(one.id);
    for (const auto& [id, span] : spans_)
        if (span.trust.is_proven() && !span.is_silent && now >= span.suspended_until)
            able.insert(id);
    board_->set_used(std::move(used), std::move(able));
    show();
    return plan;
}

std::unique_ptr<SpanRound> SpanClient::submit(const PlannedSpan& planned,
                                              std::span<const SpanSequence> sequences,
                                              std::span<const float> x) {
    std::vector<Sent> sent;
    const auto send_to = [&](std::uint32_t id) {
        Span* const span = find(id);
        MOEX_CHECK(span != nullptr, "a span of this step is known until the next step");
        sent.push_back(send(*span, planned.num_rows, sequences, x));
    };
    send_to(planned.id);
    const auto beside = beside_.find(planned.id);
    if (beside == beside_.end())
        return std::make_unique<Round>(*this, std::move(sent), std::vector<float>{});
    for (const std::uint32_t id : beside->second) send_to(id);
    return std::make_unique<Round>(*this, std::move(sent), std::vector(x.begin(), x.end()));
}

std::unique_ptr<SpanRound> SpanClient::submit_again(const PlannedSpan& planned,
                                                    const SpanBatch& batch,
                                                    std::span<const float> x) {
    for (auto& [id, span] : spans_) {
        const bool holds_the_same = id != planned.id &&
                                    span.span.first_layer == planned.first_layer &&
                                    span.span.end_layer == planned.end_layer;
        if (!holds_the_same || span.is_silent || !span.trust.is_proven() ||
            span.trust.has_ended() || options_.now() < span.suspended_until ||
            !span.sequences.has_room_without_ended(batch.sequences) ||
            !has_states(span, batch.sequences) || !bring(span, batch, options_.kv_bytes_at_once))
            continue;
        return std::make_unique<Round>(
            *this, std::vector{send(span, planned.num_rows, batch.sequences, x)},
            std::vector<float>{});
    }
    return nullptr;
}

void SpanClient::forget(const Sent& sent) {
    for (const std::uint32_t step : sent.steps) board_->forget(step);
    if (Span* const span = find(sent.span)) span->checking = false;
}

// The answers of this span are not asked for a while. Then it is checked once more.
void SpanClient::suspend(std::uint32_t id) {
    Span* const span = find(id);
    if (span == nullptr) return;
    span->is_silent = true;
    span->gets_state = false;
    if (options_.now() < span->suspended_until) return;  // another round of the same silence
    span->suspended_until = options_.now() + span->suspended_for;
    span->suspended_for = std::min(2 * span->suspended_for, suspended_max);
    span->trust.on_failure();
}

// The holder has answered a round.
void SpanClient::answered(Span& span, const Sent& sent, Duration took) {
    if (span.gets_state && sent.steps.front() >= span.state_step) span.gets_state = false;
    if (!sent.is_behind_state) {
        span.away.record(sent.step_rows, took);
        span.wants_sample = false;
    }
    span.is_silent = false;
    span.refused_in_a_row = 0;
    span.suspended_for = suspended_min;
}

// The holder may have got none of a round's rows.
void SpanClient::doubt(const Sent& sent) {
    if (Span* const span = find(sent.span))
        for (const SpanSequence& one : sent.sequences)
            span->sequences.doubt(one.id, one.num_before);
}

Result<SpanResult> SpanClient::wait(const Sent& sent, const std::stop_token& stop) {
    // The rows that a recurrent layer keeps of a long prompt take their time on the line.
    const Duration late_max = options_.num_delta(sent.first_layer, sent.end_layer) > 0
                                  ? std::max(options_.late_max, 2 * sent.expected)
                                  : options_.late_max;
    const Duration late = std::clamp(4 * sent.expected, options_.late_min, late_max);
    const TimePoint deadline = sent.at + late;
    std::vector<SpanAnswer> answers;
    TimePoint last{};
    std::uint64_t answer_bytes = 0;
    Error failure{ErrorCode::timeout, text("no answer of a span within ", to_ms(late), " ms")};
    for (const std::uint32_t step : sent.steps) {
        auto answer = board_->wait(step, deadline, stop);
        if (!answer && stop.stop_requested())
            failure = {ErrorCode::cancelled, "the step was stopped"};
        if (answer && !answer->answer.ok()) failure = answer->answer.error();
        if (!answer || !answer->answer.ok()) break;
        last = std::max(last, answer->at);
        answer_bytes += answer->bytes;
        answers.push_back(std::move(*answer->answer));
    }
    forget(sent);
    if (answers.size() < sent.steps.size()) {
        doubt(sent);
        if (failure.code == ErrorCode::cancelled) return failure;
        if (failure.code == ErrorCode::non_finite)
            judge(sent.span, SpanFinding::wrong, failure.message);
        if (failure.code == ErrorCode::timeout) link_.late(sent.span, sent.at);
        suspend(sent.span);
        const std::lock_guard lock(shown_mutex_);
        ++(failure.code == ErrorCode::timeout ? counters_.late : counters_.failed);
        return failure;
    }

    Result<SpanResult> result = joined(sent, std::move(answers));
    Span* const span = find(sent.span);
    if (result.ok() && span != nullptr) answered(*span, sent, last - sent.at);
    const std::lock_guard lock(shown_mutex_);
    ++(result.ok() ? counters_.trips : counters_.failed);
    counters_.answer_bytes += answer_bytes;
    if (result.ok()) counters_.answer_rows += sent.num_rows;
    return result;
}

void SpanClient::record(const PlannedSpan& span, std::uint32_t num_rows, Duration took) {
    // The time at a worker is measured where its answer arrives.
    if (span.use != SpanUse::away) here_[{span.first_layer, span.end_layer}].record(num_rows, took);
}

void SpanClient::ended(std::uint64_t sequence) {
    for (auto& [id, span] : spans_)
        if (span.sequences.end(sequence)) link_.send(id, 0, encode_span_end({sequence}));
}

void SpanClient::kept(std::uint64_t sequence) {
    for (auto& [id, span] : spans_) span.sequences.keep(sequence, options_.now());
}

void SpanClient::resumed(std::uint64_t sequence, std::uint32_t num_tokens) {
    for (auto& [id, span] : spans_) span.sequences.resume(sequence, num_tokens);
}

void SpanClient::forget_ended() {
    const TimePoint before = options_.now() - options_.kept_after_end;
    for (auto& [id, span] : spans_)
        while (drop_ended(span, before)) {}
}

void SpanClient::show() {
    std::vector<SpanView> views;
    for (const auto& [id, span] : spans_) {
        SpanView view{.worker = span.span.worker,
                      .first_layer = span.span.first_layer,
                      .end_layer = span.span.end_layer,
                      .proven = span.trust.is_proven(),
                      .used = span.used,
                      .standby = span.standby};
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
