// What a span's holder is sent: keys, values and states that it lacks, and the rows of steps.
#include <algorithm>

#include "hub/dispatch/span/span_client.h"

namespace moex {
namespace {

// The size of a SPAN_KV frame.
constexpr std::uint64_t kv_frame_bytes = 1u << 20;

}  // namespace

// Sends keys and values that the worker lacks, at most `bytes_left` bytes. Returns true if it lacks
// none, and has pages for the rows.
bool SpanClient::bring(Span& span, const SpanBatch& batch, std::uint64_t bytes_left) {
    if (!make_room(span, batch.sequences)) return false;
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
            if (!batch.read_kv(i, span.span.first_layer, span.span.end_layer, known, count, kv.rows)
                     .ok())
                return false;
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

// Lets the worker forget the sequence that ended first. Returns false if none ended before
// `before`.
bool SpanClient::drop_ended(Span& span, TimePoint before) {
    const std::optional<std::uint64_t> ended = span.sequences.drop_ended(before);
    if (ended) link_.send(span.span.id, 0, encode_span_end({*ended}));
    return ended.has_value();
}

// Lets the worker forget ended sequences until it has pages for these rows. Returns false if it has
// too few even so.
bool SpanClient::make_room(Span& span, std::span<const SpanSequence> sequences) {
    while (!span.sequences.has_room(sequences))
        if (!drop_ended(span, TimePoint::max())) return false;
    return true;
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
        std::vector<Bytes> frames;
        SpanState state{.span = span.span.id,
                        .sequence = one.id,
                        .num_tokens = one.num_before,
                        .num_layers = span.num_recurrent};
        for (std::uint32_t layer = span.span.first_layer; layer < span.span.end_layer; ++layer) {
            if (!options_.is_delta(layer)) continue;
            auto floats = batch.read_state(i, layer);
            if (!floats.ok()) return false;
            state.floats = *std::move(floats);
            frames.push_back(encode_span_state(state));
            ++state.index;
        }
        std::uint64_t frame_bytes = 0;
        for (Bytes& frame : frames) {
            frame_bytes += frame.size();
            link_.send(span.span.id, 0, std::move(frame));
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

// Sends rows to the holder of a span.
SpanClient::Sent SpanClient::send(Span& span, std::uint32_t step_rows,
                                  std::span<const SpanSequence> sequences,
                                  std::span<const float> x) {
    Sent sent{.span = span.span.id,
              .first_layer = span.span.first_layer,
              .end_layer = span.span.end_layer,
              .step_rows = step_rows,
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
    // Many rows may take much longer than the few that were measured.
    sent.expected = span.away.at_most(step_rows).value_or(options_.late_max);
    const std::lock_guard lock(shown_mutex_);
    counters_.step_bytes += step_bytes;
    counters_.step_rows += sent.num_rows;
    return sent;
}

}  // namespace moex
