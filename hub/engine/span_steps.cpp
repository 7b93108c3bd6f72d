#include "hub/engine/span_steps.h"

#include <algorithm>

#include "hub/base/trace.h"
#include "protocol/half_rows.h"

namespace moex {

std::vector<SpanSequence> sequences_of(std::span<const SequenceRow> rows) {
    std::vector<SpanSequence> sequences;
    const KvCache::Sequence* last = nullptr;
    for (const SequenceRow& row : rows) {
        if (row.kv != last) sequences.push_back({row.kv->id(), row.position, 0});
        ++sequences.back().num_rows;
        last = row.kv;
    }
    return sequences;
}

Status SpanSteps::begin(std::span<const SequenceRow> rows, std::size_t num_parts, bool may_leave) {
    plan_.clear();
    parts_.clear();
    timed_ = nullptr;
    if (backend_ == nullptr || rows.empty()) return {};

    parts_.resize(num_parts);
    num_rows_ = static_cast<std::uint32_t>(rows.size());
    const Status was_read = with_batch(
        rows, may_leave, [this](const SpanBatch& batch) { plan_ = backend_->plan(batch); });
    if (!was_read.ok()) plan_.clear();
    return was_read;
}

Status SpanSteps::with_batch(std::span<const SequenceRow> rows, bool may_leave,
                             const std::function<void(const SpanBatch& batch)>& use) const {
    const std::vector<SpanSequence> sequences = sequences_of(rows);
    std::vector<const SequenceRow*> firsts;
    for (std::size_t row = 0; const SpanSequence& one : sequences) {
        firsts.push_back(&rows[row]);
        row += one.num_rows;
    }
    Status was_read;
    const auto note = [&was_read](const Error& error) {
        if (was_read.ok()) was_read = error;
        return error;
    };
    use({.sequences = sequences,
         .num_rows = static_cast<std::uint32_t>(rows.size()),
         .may_leave = may_leave,
         .read_kv = [&](std::size_t index, std::uint32_t first_layer, std::uint32_t end_layer,
                        std::uint32_t first, std::uint32_t count,
                        std::span<std::byte> out) -> Status {
             std::vector<SequenceRow> stored(count, {firsts[index]->kv});
             for (std::uint32_t i = 0; i < count; ++i) stored[i].position = first + i;
             const Status status = read_kv_of(stored, first_layer, end_layer, out);
             return status.ok() ? status : note(status.error());
         },
         .read_state = [&](std::size_t index, std::uint32_t layer) -> Result<std::vector<float>> {
             auto state = state_of(*firsts[index], layer);
             if (!state.ok()) return note(state.error());
             return state;
         }});
    return was_read;
}

// Waits for the answer of a round. If it fails, another holder of the same layers is asked once.
Result<SpanResult> SpanSteps::wait(const PlannedSpan& span, std::unique_ptr<SpanRound> round,
                                   std::span<const SequenceRow> rows, std::span<const float> x,
                                   const std::stop_token& stop) const {
    Result<SpanResult> answer = round->wait(stop);
    if (answer.ok() || answer.error().code == ErrorCode::cancelled) return answer;
    round.reset();
    MOEX_TRY(with_batch(rows, true, [&](const SpanBatch& batch) {
        round = backend_->submit_again(span, batch, x);
    }));
    return round ? round->wait(stop) : answer;
}

void SpanSteps::read_kv(const SequenceRow& row, std::uint32_t layer, std::uint32_t position,
                        std::byte* out) const {
    const std::size_t size = std::size_t{config_.num_kv_heads} * config_.head_dim;
    // Rows that no window sees any more are gone. A worker gets zeros in their place, and does not
    // read them either.
    if (config_.layers[layer].window > 0 &&
        !row.kv->has_window_rows(position / row.kv->page_tokens())) {
        std::fill_n(out, 2 * size * sizeof(half), std::byte{0});
        return;
    }
    halves_of_floats(row.kv->k(layer, position).data(), size, out);
    halves_of_floats(row.kv->v(layer, position).data(), size, out + size * sizeof(half));
}

// Copies the keys and values of rows, for those of the layers that have them.
Status SpanSteps::read_kv_of(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                             std::uint32_t end_layer, std::span<std::byte> out) const {
    std::size_t at = 0;
    for (std::uint32_t layer = first_layer; layer < end_layer;) {
        const std::uint32_t end = end_of_keys(layer, end_layer);
        const std::size_t bytes = (end - layer) * rows.size() * kept_bytes(layer);
        if (store_ != nullptr && layer < end)
            MOEX_TRY(store_->read(rows, layer, end, out.subspan(at, bytes)));
        for (std::byte* to = out.data() + at; store_ == nullptr && layer < end; ++layer)
            for (const SequenceRow& row : rows) {
                read_kv(row, layer, row.position, to);
                to += kept_bytes(layer);
            }
        at += bytes;
        layer = end + 1;
    }
    return {};
}

// Returns the end of the layers from `layer` on that have keys.
std::uint32_t SpanSteps::end_of_keys(std::uint32_t layer, std::uint32_t end) const {
    while (layer < end && config_.has_keys(layer)) ++layer;
    return layer;
}

Result<std::vector<float>> SpanSteps::state_of(const SequenceRow& row, std::uint32_t layer) const {
    if (store_ == nullptr) return delta_net_->state_before_step(row, layer);
    return store_->state_before_step(row, layer);
}

// Returns what the layers of a span that were computed here keep of the rows of a micro-batch.
Result<Bytes> SpanSteps::kept_here(Part& part, const PlannedSpan& span,
                                   std::span<const SequenceRow> rows) const {
    Bytes kv;
    for (std::uint32_t layer = span.first_layer; layer < span.end_layer;) {
        if (!config_.has_keys(layer)) {
            const Bytes& kept = part.kept[layer++];
            kv.insert(kv.end(), kept.begin(), kept.end());
            continue;
        }
        const std::uint32_t end = end_of_keys(layer, span.end_layer);
        const std::size_t at = kv.size();
        kv.resize(at + (end - layer) * rows.size() * kept_bytes(layer));
        MOEX_TRY(read_kv_of(rows, layer, end, std::span(kv).subspan(at)));
        layer = end;
    }
    part.kept.clear();
    return kv;
}

// Returns the bytes that a layer keeps of a row.
std::size_t SpanSteps::kept_bytes(std::uint32_t layer) const {
    const std::size_t values = config_.has_keys(layer)
                                   ? 2 * std::size_t{config_.num_kv_heads} * config_.head_dim
                                   : kept_values_;
    return values * sizeof(half);
}

bool SpanSteps::wants_kept(std::size_t part, std::uint32_t layer) const {
    if (plan_.empty()) return false;
    const PlannedSpan* const span = parts_[part].span;
    return span != nullptr && span->use == SpanUse::check && layer < span->end_layer;
}

void SpanSteps::computed_delta_rule(std::size_t part, std::uint32_t layer) {
    if (wants_kept(part, layer)) delta_net_->append_kept(parts_[part].kept[layer]);
}

const PlannedSpan* SpanSteps::span_from(std::uint32_t layer) const {
    const auto found = std::find_if(plan_.begin(), plan_.end(), [&](const PlannedSpan& one) {
        return one.first_layer == layer;
    });
    return found == plan_.end() ? nullptr : &*found;
}

void SpanSteps::enter_layer(std::uint32_t layer) {
    if (plan_.empty()) return;
    if (timed_ != nullptr && timed_->end_layer == layer && timed_->use != SpanUse::away) {
        if (!timed_->with_own_weights)
            backend_->record(*timed_, num_rows_, now_steady() - entered_);
        timed_ = nullptr;
    }
    if (const PlannedSpan* const span = span_from(layer)) {
        timed_ = span;
        timed_whole_ = true;
        entered_ = now_steady();
    }
}

bool SpanSteps::checks_with_weights(std::uint32_t layer) const {
    return std::any_of(plan_.begin(), plan_.end(), [&](const PlannedSpan& one) {
        return one.with_own_weights && one.first_layer <= layer && layer < one.end_layer;
    });
}

bool SpanSteps::leave(std::size_t part, std::uint32_t layer, std::span<const SequenceRow> rows,
                      std::span<const float> x) {
    const PlannedSpan* const span = plan_.empty() ? nullptr : span_from(layer);
    if (span == nullptr || span->use == SpanUse::here) return false;
    Part& mine = parts_[part];
    mine.span = span;
    mine.round = backend_->submit(*span, sequences_of(rows), x);
    if (span->use == SpanUse::away) {
        // The wait for the layer before belongs to that layer.
        if (part == 0) entered_ = now_steady();
        return true;
    }
    mine.sent.assign(x.begin(), x.end());
    return false;
}

bool SpanSteps::is_away(std::size_t part, std::uint32_t layer) const {
    if (plan_.empty()) return false;
    const PlannedSpan* const span = parts_[part].span;
    return span != nullptr && span->use == SpanUse::away && layer < span->end_layer;
}

bool SpanSteps::ends(std::size_t part, std::uint32_t layer) const {
    return !plan_.empty() && parts_[part].round && parts_[part].span->end_layer == layer;
}

// Stores what the layers of a span keep of the rows of a micro-batch.
Status SpanSteps::store(std::size_t part, const SpanResult& answer, const PlannedSpan& span,
                        std::span<const SequenceRow> rows) const {
    ByteView left = answer.kv;
    const auto take = [&](std::size_t bytes) {
        return std::exchange(left, left.subspan(bytes)).first(bytes);
    };
    for (std::uint32_t layer = span.first_layer; layer < span.end_layer;) {
        const std::size_t layer_bytes = rows.size() * kept_bytes(layer);
        if (const std::uint32_t end = end_of_keys(layer, span.end_layer); layer < end) {
            MOEX_TRY(store_kv(rows, layer, end, take((end - layer) * layer_bytes)));
            layer = end;
            continue;
        }
        const ByteView kept = take(layer_bytes);
        if (store_ != nullptr)
            MOEX_TRY(store_->take_kept(part, rows, layer, kept));
        else
            delta_net_->take_kept(rows, layer, kept);
        ++layer;
    }
    return {};
}

Status SpanSteps::store_kv(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                           std::uint32_t end_layer, ByteView kv) const {
    if (store_ != nullptr) return store_->write(rows, first_layer, end_layer, kv);
    const std::size_t size = std::size_t{config_.num_kv_heads} * config_.head_dim;
    std::vector<float> k(size), v(size);
    const std::byte* from = kv.data();
    for (std::uint32_t layer = first_layer; layer < end_layer; ++layer)
        for (const SequenceRow& row : rows) {
            floats_of_halves(from, size, k.data());
            floats_of_halves(from + size * sizeof(half), size, v.data());
            row.kv->store(layer, row.position, k, v);
            from += 2 * size * sizeof(half);
        }
    return {};
}

void SpanSteps::count(const SpanResult& answer, const PlannedSpan& span, std::size_t num_rows,
                      StepResult& result, std::size_t first_row) const {
    const auto pairs = static_cast<std::uint16_t>(
        std::min<std::uint32_t>(config_.top_k * (span.end_layer - span.first_layer), 0xffff));
    for (std::size_t r = first_row; r < first_row + num_rows; ++r) {
        result.rows[r].pairs_remote += pairs;
        if (answer.proven) result.rows[r].pairs_proven += pairs;
        std::vector<std::uint64_t>& workers = result.row_workers[r];
        const auto at = std::lower_bound(workers.begin(), workers.end(), answer.worker);
        if (at == workers.end() || *at != answer.worker) workers.insert(at, answer.worker);
    }
}

Result<std::optional<SpanSteps::Layers>> SpanSteps::come_back(
    std::size_t part, std::uint32_t layer, std::span<const SequenceRow> rows, std::span<float> x,
    StepResult& result, std::size_t first_row, const std::stop_token& stop) {
    if (!ends(part, layer)) return std::optional<Layers>{};
    Part& mine = parts_[part];

    const PlannedSpan& span = *std::exchange(mine.span, nullptr);
    std::unique_ptr<SpanRound> round = std::move(mine.round);
    if (span.use == SpanUse::check) {
        MOEX_ASSIGN(kv, kept_here(mine, span, rows));
        round->compare(mine.sent, x, std::move(kv));
        return std::optional<Layers>{};
    }

    const TraceSpan traced(Trace::Row::engine, "wait for a span",
                           {"layers", span.end_layer - span.first_layer});
    const TimePoint asked_at = now_steady();
    const Result<SpanResult> answer = wait(span, std::move(round), rows, x, stop);
    const Duration waited = now_steady() - asked_at;
    result.wait_time += waited;
    result.experts_waited += waited;
    if (!answer.ok() && answer.error().code == ErrorCode::cancelled) return answer.error();
    if (!answer.ok()) {
        timed_whole_ = false;
        return std::optional<Layers>({span.first_layer, span.end_layer});
    }

    std::copy(answer->x.begin(), answer->x.end(), x.begin());
    MOEX_TRY(store(part, *answer, span, rows));
    count(*answer, span, rows.size(), result, first_row);
    const bool is_last = std::none_of(parts_.begin(), parts_.end(),
                                      [](const Part& one) { return one.round != nullptr; });
    if (is_last && timed_whole_ && timed_ == &span)
        backend_->record(span, num_rows_, now_steady() - entered_);
    return std::optional<Layers>{};
}

void SpanSteps::drop() {
    for (Part& part : parts_) part = {};
}

}  // namespace moex
