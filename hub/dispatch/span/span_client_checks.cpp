// Answers of checks: compared with the hub's own or with those that are used, and their verdicts.
#include <algorithm>

#include "hub/dispatch/span/span_client.h"
#include "protocol/text.h"

namespace moex {
namespace {

// A check without an answer is dropped after this time.
constexpr Duration check_within = 30s;

}  // namespace

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

// Returns true if a check of the span is computed with weights of this machine: once its holder is
// proven and it is known which way is faster.
bool SpanClient::checks_with_weights(const Span& span, const SpanBatch& batch) {
    return options_.has_weights && span.trust.is_proven() &&
           verdict_of(span, batch) != Verdict::unknown &&
           std::uniform_real_distribution<>()(random_) < options_.checks_with_weights;
}

// Records the finding of a check in the record of the worker.
void SpanClient::judge(std::uint32_t id, SpanFinding finding, std::string_view why) {
    Span* const span = find(id);
    if (span == nullptr) return;
    span->is_disputed = false;
    if (finding != SpanFinding::right) {
        span->probe_at = {};  // the doubt begins with the next step
        const std::lock_guard lock(shown_mutex_);
        ++counters_.wrong;
    }
    end_record(*span, span->trust.on_check(finding), why);
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

// The worker computes no spans any more.
void SpanClient::end_record(Span& span, SpanEnd end, std::string_view why) {
    if (end == SpanEnd::none) return;
    const bool is_lie = end == SpanEnd::lied;
    {
        const std::lock_guard lock(shown_mutex_);
        ++(is_lie ? counters_.lies : counters_.set_aside);
    }
    (is_lie ? link_.lied : link_.set_aside)(span.span.id, std::string(why));
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
            judge(sent.span, SpanFinding::wrong, "an answer has another shape than the step");
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

SpanShape SpanClient::shape_of(const Sent& sent) const {
    SpanShape shape{.hidden_size = hidden_size_, .num_rows = sent.num_rows, .row_parts = {}};
    for (std::uint32_t layer = sent.first_layer; layer < sent.end_layer; ++layer)
        shape.row_parts.push_back(options_.row_parts(layer));
    return shape;
}

// Returns how far an answer differs from what the hub computed (span_residual.h).
double SpanClient::difference_of(const Check& check, const SpanResult& answer) {
    const double most = span_residual(shape_of(check.sent), check.x_before, {check.x, check.kv},
                                      {answer.x, answer.kv})
                            .largest();
    {
        const std::lock_guard lock(shown_mutex_);
        ++counters_.checks;
        counters_.difference_max = std::max(counters_.difference_max, most);
    }
    return most;
}

// Ends a check without an answer to compare: it was lost, refused or is no number.
void SpanClient::settle_failed(Check& check, const Error& failure) {
    doubt(check.sent);
    if (failure.code == ErrorCode::non_finite)
        judge(check.sent.span, SpanFinding::wrong, failure.message);
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
    const bool is_right = difference <= options_.tolerance;
    if (check.used != 0 && !is_right) {
        dispute(*span, check.used);
        return true;
    }
    std::string why;
    auto finding = SpanFinding::right;
    if (!is_right) {
        const RouteTraces traces = route_traces(shape_of(check.sent), check.x_before,
                                                {check.x, check.kv}, {answer->x, answer->kv},
                                                options_.tolerance);
        finding = traces.is_wrong() ? SpanFinding::wrong : SpanFinding::differs;
        why = text("an answer of a span differs by ", difference, " of its size, at most ",
                   options_.tolerance, " is right",
                   finding == SpanFinding::wrong ? "; no other choice of experts explains it"
                                                 : "; another choice of experts may explain it");
    }
    judge(check.sent.span, finding, why);
    return true;
}

void SpanClient::settle_checks() {
    std::erase_if(checks_, [&](Check& check) {
        if (!settle(check)) return false;
        forget(check.sent);
        return true;
    });
}

}  // namespace moex
