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
// Records of workers that hold no span are forgotten beyond this number.
constexpr std::size_t records_max = 10'000;
constexpr Duration suspended_min = 1s, suspended_max = 60s;

}  // namespace

// A ready span with what the engine's thread knows about it.
struct SpanClient::Span {
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
    bool is_silent = false;    // the newest step was not answered
    bool is_disputed = false;  // it differed from the span that is used; the hub has not judged it
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
struct SpanClient::Sent {
    std::uint32_t span = 0, first_layer = 0, end_layer = 0, num_rows = 0;
    std::uint32_t num_layers() const { return end_layer - first_layer; }
    std::vector<std::uint32_t> steps;
    std::vector<std::uint32_t> rows_of_step;
    std::vector<SpanSequence> sequences;
    TimePoint at{};
    Duration expected{};
    bool is_behind_state = false;  // the answer waits until a state has arrived
};

// A round of a check: its answer is compared with the hub's own, or with that of the span `used`.
struct SpanClient::Check {
    Sent sent;
    std::uint32_t used = 0;  // 0: with the hub's own
    std::vector<float> x_before, x;
    Bytes kv;
    std::vector<SpanAnswer> answers;  // those that have arrived
    TimePoint answered_at{};
};

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

// Remembers rounds whose answers are compared with `x` and `kv`, of the hub or of the span `used`.
void SpanClient::compare(std::vector<Sent> sent, std::span<const float> x_before,
                         std::span<const float> x, const Bytes& kv, std::uint32_t used) {
    for (Sent& one : sent)
        checks_.push_back({std::move(one),
                           used,
                           {x_before.begin(), x_before.end()},
                           {x.begin(), x.end()},
                           kv,
                           {},
                           {}});
}

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

// Sends keys and values that the worker lacks, at most `bytes_left` bytes. Returns true if it lacks
// none.
bool SpanClient::bring(Span& span, const SpanBatch& batch, std::uint64_t bytes_left) {
    const std::uint32_t num_layers = span.span.num_layers() - span.num_recurrent;
    if (num_layers == 0) return bring_states(span, batch);
    const std::uint64_t row_bytes = span_kv_bytes(num_layers, 1, options_.kv_size);
    const std::uint32_t frame_rows = span_kv_rows_max(kv_frame_bytes, num_layers, options_.kv_size);
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
                      .num_layers = num_layers,
                      .kv_size = options_.kv_size,
                      .rows = Bytes(count * row_bytes)};
            batch.read_kv(i, span.span.first_layer, span.span.end_layer, known, count, kv.rows);
            Bytes frame = encode_span_kv(kv);
            const std::uint64_t frame_bytes = frame.size();
            link_.send(span.span.id, 0, std::move(frame));
            bytes_left -= count * row_bytes;
            known += count;
            span.sequences.set_without_states(one.id, known);
            const std::lock_guard lock(shown_mutex_);
            counters_.kv_rows += count;
            counters_.kv_bytes += frame_bytes;
        }
    }
    return bring_states(span, batch);
}

// Returns true if the worker can go on with these sequences without a state from here.
bool SpanClient::has_states(const Span& span, std::span<const SpanSequence> sequences) const {
    return !span.is_recurrent() ||
           std::all_of(sequences.begin(), sequences.end(), [&](const SpanSequence& one) {
               return span.sequences.has_state(one.id, one.num_before);
           });
}

// Returns the bytes of the recurrent states that the worker lacks.
std::uint64_t SpanClient::state_bytes(const Span& span,
                                      std::span<const SpanSequence> sequences) const {
    const auto lacking = std::count_if(
        sequences.begin(), sequences.end(),
        [&](const SpanSequence& one) { return !span.sequences.has_state(one.id, one.num_before); });
    return static_cast<std::uint64_t>(lacking) * sizeof(float) * options_.state_floats *
           span.num_recurrent;
}

// Returns true if as many checks of a worker are in flight as may be.
bool SpanClient::has_many_checks(const Span& span) const {
    std::uint64_t count = 0, bytes = 0;
    for (const Check& check : checks_) {
        if (check.sent.span != span.span.id) continue;
        ++count;
        bytes += check.kv.size() + (check.x.size() + check.x_before.size()) * sizeof(float);
    }
    return count >= options_.checks_at_once || bytes >= options_.check_bytes_at_once;
}

// Sends the recurrent states that the worker lacks, all at once: with the next step they are
// others. Returns false if this hub does not have them, if they are too large, or if others are on
// their way.
bool SpanClient::bring_states(Span& span, const SpanBatch& batch) {
    if (has_states(span, batch.sequences)) return true;
    if (!batch.read_state || span.gets_state ||
        state_bytes(span, batch.sequences) > options_.state_bytes_at_once)
        return false;
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
        const SpanSequence& one = batch.sequences[i];
        if (span.sequences.has_state(one.id, one.num_before)) continue;
        std::uint64_t frame_bytes = 0;
        SpanState state{.span = span.span.id,
                        .sequence = one.id,
                        .num_tokens = one.num_before,
                        .num_layers = span.num_recurrent};
        for (std::uint32_t layer = span.span.first_layer; layer < span.span.end_layer; ++layer) {
            if (!options_.is_delta(layer)) continue;
            state.floats = batch.read_state(i, layer);
            Bytes frame = encode_span_state(state);
            frame_bytes += frame.size();
            link_.send(span.span.id, 0, std::move(frame));
            ++state.index;
        }
        span.sequences.set(one.id, one.num_before);
        span.sequences.keep_states_from(one.id, one.num_before);
        span.gets_state = span.wants_sample = true;
        span.state_step = last_step_ + 1;
        const std::lock_guard lock(shown_mutex_);
        ++counters_.states;
        counters_.kv_bytes += frame_bytes;
    }
    return true;
}

// Decides where a step computes the layers of a span.
SpanUse SpanClient::use_of(Span& span, const SpanBatch& batch) {
    const TimePoint now = options_.now();
    if (!batch.may_leave || span.trust.has_lied() || now < span.suspended_until ||
        !span.sequences.has_room(batch.sequences))
        return SpanUse::here;

    const auto here = here_[{span.span.first_layer, span.span.end_layer}].expected(batch.num_rows),
               away = span.away.expected(batch.num_rows);
    const bool is_measured = here && away,
               is_worth = is_measured && to_ms(*away) <= options_.worth * to_ms(*here);
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
    // long as a check is under way, so that its state stays that of the text.
    const bool keeps_up = span.is_recurrent() && has_states(span, batch.sequences);
    const bool measures = keeps_up && span.wants_sample;
    if ((span.checking && !keeps_up) ||
        (is_measured && !is_worth && !measures && now < span.probe_at) ||
        (span.is_recurrent() && has_many_checks(span)))
        return SpanUse::here;
    if (!bring(span, batch, options_.kv_bytes_at_once)) return SpanUse::here;
    span.checking = true;
    if (is_measured && !is_worth) {
        span.probe_every = std::clamp(2 * span.probe_every, options_.probe_min, options_.probe_max);
        span.probe_at = now + span.probe_every;
    }
    return SpanUse::check;
}

// Returns true if a check of the span is computed with weights of this machine: once its holder is
// proven and both ways were measured.
bool SpanClient::checks_with_weights(const Span& span, std::uint32_t num_rows) {
    if (!options_.has_weights || !span.trust.is_proven()) return false;
    const auto here = here_[{span.span.first_layer, span.span.end_layer}].expected(num_rows);
    return here && span.away.expected(num_rows) &&
           std::uniform_real_distribution<>()(random_) < options_.checks_with_weights;
}

// Prepares a standby of the span `first`: brings keys and values beside the step, and lets it
// compute the step too where the step is a check, or where the standby has no record yet and the
// answer of a holder that has one is used.
void SpanClient::stand_by(Span& span, const SpanBatch& batch, const PlannedSpan& first) {
    span.standby = true;
    if (!batch.may_leave || span.trust.has_lied() || options_.now() < span.suspended_until ||
        !span.sequences.has_room(batch.sequences))
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
                            use == SpanUse::check && checks_with_weights(*span, batch.num_rows)});
        for (const PlannedSpan& first : plan)
            if (!is_apart && first.first_layer == span->span.first_layer &&
                first.end_layer == span->span.end_layer)
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
        sent.push_back(send(*span, sequences, x));
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
        if (!holds_the_same || span.is_silent || !span.trust.is_proven() || span.trust.has_lied() ||
            options_.now() < span.suspended_until || !span.sequences.has_room(batch.sequences) ||
            !has_states(span, batch.sequences) || !bring(span, batch, options_.kv_bytes_at_once))
            continue;
        return std::make_unique<Round>(*this, std::vector{send(span, batch.sequences, x)},
                                       std::vector<float>{});
    }
    return nullptr;
}

// Sends rows to the holder of a span.
SpanClient::Sent SpanClient::send(Span& span, std::span<const SpanSequence> sequences,
                                  std::span<const float> x) {
    Sent sent{.span = span.span.id,
              .first_layer = span.span.first_layer,
              .end_layer = span.span.end_layer,
              .sequences = {sequences.begin(), sequences.end()},
              .at = options_.now()};
    std::uint64_t step_bytes = 0;
    // Cut the rows into frames.
    std::vector<SpanSequence> left(sequences.begin(), sequences.end());
    std::size_t at = 0;
    for (auto next = left.begin(); next != left.end();) {
        SpanStep step{.step = ++last_step_ == 0 ? ++last_step_ : last_step_, .span = span.span.id};
        std::uint32_t rows = 0;
        while (next != left.end() && rows < span.span.rows_max) {
            const std::uint32_t count = std::min(next->num_rows, span.span.rows_max - rows);
            step.sequences.push_back({next->id, next->num_before, count});
            // The worker keeps the state before few rows, and otherwise the one behind them.
            span.sequences.keep_states_from(
                next->id, count <= span_kept_rows ? next->num_before : next->num_before + count);
            rows += count;
            next->num_before += count;
            next->num_rows -= count;
            if (next->num_rows == 0) ++next;
        }
        step.x.assign(x.begin() + static_cast<std::ptrdiff_t>(at),
                      x.begin() + static_cast<std::ptrdiff_t>(at + rows * hidden_size_));
        at += std::size_t{rows} * hidden_size_;
        board_->expect(step.step, span.span.id);
        Bytes frame = encode_span_step(step, hidden_size_);
        step_bytes += frame.size();
        link_.send(span.span.id, step.step, std::move(frame));
        sent.steps.push_back(step.step);
        sent.rows_of_step.push_back(rows);
        sent.num_rows += rows;
    }
    for (const SpanSequence& one : sequences)
        span.sequences.set(one.id, one.num_before + one.num_rows);
    sent.is_behind_state = span.gets_state;
    sent.expected = span.away.expected(sent.num_rows).value_or(options_.late_max);
    const std::lock_guard lock(shown_mutex_);
    counters_.step_bytes += step_bytes;
    counters_.step_rows += sent.num_rows;
    return sent;
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

// Records the verdict of a check in the record of the worker.
void SpanClient::judge(std::uint32_t id, bool is_right, std::string_view why) {
    Span* const span = find(id);
    if (span == nullptr) return;
    span->is_disputed = false;
    if (!is_right) {
        const std::lock_guard lock(shown_mutex_);
        ++counters_.wrong;
    }
    if (span->trust.on_check(is_right)) lie(*span, why);
}

// A standby differs from the span `used`, and either may be wrong: the next step of both is a check
// by the hub.
void SpanClient::dispute(Span& standby, std::uint32_t used) {
    standby.is_disputed = true;
    standby.trust.on_failure();
    if (Span* const other = find(used)) other->trust.on_failure();
    const std::lock_guard lock(shown_mutex_);
    ++counters_.disputes;
}

// The holder has answered a round.
void SpanClient::answered(Span& span, const Sent& sent, Duration took) {
    if (span.gets_state && sent.steps.front() >= span.state_step) span.gets_state = false;
    if (!sent.is_behind_state) {
        span.away.record(sent.num_rows, took);
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

void SpanClient::lie(Span& span, std::string_view why) {
    {
        const std::lock_guard lock(shown_mutex_);
        ++counters_.lies;
    }
    link_.lied(span.span.id, std::string(why));
}

// Joins the answers of a round's frames. An answer of another shape counts as a wrong check.
Result<SpanResult> SpanClient::joined(const Sent& sent, std::vector<SpanAnswer> answers) {
    std::uint32_t row_values = 0;  // where some layers have a gated delta rule
    if (options_.num_delta(sent.first_layer, sent.end_layer) > 0)
        for (std::uint32_t layer = sent.first_layer; layer < sent.end_layer; ++layer)
            row_values += options_.row_values(layer);
    for (std::size_t i = 0; i < answers.size(); ++i) {
        const SpanAnswer& one = answers[i];
        if (one.verdict != SpanVerdict::done) {
            // The worker lacks tokens or room: what it knows is not what was assumed.
            Span* const span = find(sent.span);
            if (span != nullptr) {
                for (const SpanSequence& sequence : sent.sequences)
                    span->sequences.doubt(sequence.id, 0);
                span->gets_state = false;
            }
            const bool lacks_tokens = one.verdict == SpanVerdict::unknown_sequence;
            if (!lacks_tokens || (span != nullptr && ++span->refused_in_a_row > 1))
                suspend(sent.span);
            return Error{ErrorCode::unavailable, text("the span's worker refused a step: ",
                                                      static_cast<unsigned>(one.verdict))};
        }
        if (one.num_rows != sent.rows_of_step[i] || one.num_layers != sent.num_layers() ||
            one.kv_size != options_.kv_size || one.row_values != row_values) {
            judge(sent.span, false, "an answer has another shape than the step");
            return Error{ErrorCode::bad_field, "an answer has another shape than the step"};
        }
    }

    SpanResult result;
    for (const SpanAnswer& one : answers)
        result.x.insert(result.x.end(), one.x.begin(), one.x.end());
    std::size_t before = 0;  // bytes of a row in the layers before
    for (std::uint32_t layer = sent.first_layer; layer < sent.end_layer; ++layer) {
        const std::size_t row_bytes = options_.row_values(layer) * sizeof(half);
        for (const SpanAnswer& one : answers) {
            const ByteView rows = ByteView(one.kv).subspan(before * one.num_rows,
                                                           one.num_rows * row_bytes);
            result.kv.insert(result.kv.end(), rows.begin(), rows.end());
        }
        before += row_bytes;
    }
    if (const Span* const span = find(sent.span)) {
        result.worker = span->span.worker;
        result.proven = span->trust.is_proven();
    }
    return result;
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
        if (failure.code == ErrorCode::non_finite) judge(sent.span, false, failure.message);
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

// Returns how far an answer differs from what the hub computed (span_residual.h).
double SpanClient::difference_of(const Check& check, const SpanResult& answer) {
    SpanShape shape{.hidden_size = hidden_size_, .num_rows = check.sent.num_rows, .row_parts = {}};
    for (std::uint32_t layer = check.sent.first_layer; layer < check.sent.end_layer; ++layer)
        shape.row_parts.push_back(options_.row_parts(layer));
    const double most =
        span_residual(shape, check.x_before, {check.x, check.kv}, {answer.x, answer.kv}).largest();
    {
        const std::lock_guard lock(shown_mutex_);
        ++counters_.checks;
        counters_.difference_max = std::max(counters_.difference_max, most);
    }
    return most;
}

// A check whose answer was lost, refused or is no number.
void SpanClient::settle_failed(Check& check, const Error& failure) {
    doubt(check.sent);
    if (failure.code == ErrorCode::non_finite) judge(check.sent.span, false, failure.message);
    suspend(check.sent.span);
}

// Returns true if the check is over.
bool SpanClient::settle(Check& check) {
    while (check.answers.size() < check.sent.steps.size()) {
        auto answer = board_->poll(check.sent.steps[check.answers.size()]);
        if (!answer) {
            const bool is_late = options_.now() > check.sent.at + check_within;
            if (is_late) {
                doubt(check.sent);
                suspend(check.sent.span);
            }
            return is_late || find(check.sent.span) == nullptr;
        }
        if (!answer->answer.ok()) {
            settle_failed(check, answer->answer.error());
            return true;
        }
        {
            const std::lock_guard lock(shown_mutex_);
            counters_.answer_bytes += answer->bytes;
            if (answer->answer.ok()) counters_.answer_rows += answer->answer->num_rows;
        }
        check.answered_at = std::max(check.answered_at, answer->at);
        check.answers.push_back(std::move(*answer->answer));
    }
    const Result<SpanResult> answer = joined(check.sent, std::move(check.answers));
    Span* const span = find(check.sent.span);
    if (!answer.ok() || span == nullptr) return true;
    answered(*span, check.sent, check.answered_at - check.sent.at);
    const double difference = difference_of(check, *answer);
    if (check.used != 0 && difference > options_.tolerance) {
        dispute(*span, check.used);
        return true;
    }
    judge(check.sent.span, difference <= options_.tolerance,
          text("an answer of a span differs by ", difference, " of its size, at most ",
               options_.tolerance, " is right"));
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
