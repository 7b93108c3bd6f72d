#include "hub/commands/gpu/gpu_spans.h"

#include <algorithm>
#include <cstring>

#include "hub/commands/gpu/read_back.h"
#include "protocol/half_rows.h"

namespace moex {
namespace {

// Returns for each row, sequence by sequence, its number in `rows`. The rows of a sequence keep
// their order.
std::vector<std::uint32_t> by_sequence(std::span<const SequenceRow> rows) {
    std::vector<const KvCache::Sequence*> sequences;
    for (const SequenceRow& row : rows)
        if (std::find(sequences.begin(), sequences.end(), row.kv) == sequences.end())
            sequences.push_back(row.kv);
    std::vector<std::uint32_t> order;
    for (const KvCache::Sequence* const sequence : sequences)
        for (std::uint32_t i = 0; i < rows.size(); ++i)
            if (rows[i].kv == sequence) order.push_back(i);
    return order;
}

std::vector<SequenceRow> in_order(std::span<const SequenceRow> rows,
                                  std::span<const std::uint32_t> order) {
    std::vector<SequenceRow> out;
    for (const std::uint32_t i : order) out.push_back(rows[i]);
    return out;
}

// Adds what spans contributed to the rows of a part to the result of the step.
void add_provenance(const StepResult& mine, std::span<const std::uint32_t> order,
                    std::span<const std::uint32_t> index, StepResult& result) {
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::uint32_t to = index[order[i]];
        result.rows[to].pairs_remote += mine.rows[i].pairs_remote;
        result.rows[to].pairs_proven += mine.rows[i].pairs_proven;
        std::vector<std::uint64_t>& workers = result.row_workers[to];
        for (const std::uint64_t worker : mine.row_workers[i]) {
            const auto at = std::lower_bound(workers.begin(), workers.end(), worker);
            if (at == workers.end() || *at != worker) workers.insert(at, worker);
        }
    }
    result.wait_time += mine.wait_time;
    result.experts_waited += mine.experts_waited;
}

}  // namespace

Status GpuSpans::begin(std::span<const Rows> parts, bool may_leave) {
    parts_.clear();
    first_runs_.clear();
    if (!steps_.is_on() || !decoder_->sends_layers()) return {};
    entered_ = 0;
    std::vector<SequenceRow> all;
    for (const auto& [rows, runs] : parts) {
        const auto lane = static_cast<std::uint32_t>(parts_.size());
        Part& part = parts_.emplace_back();
        part.order = by_sequence(rows);
        const KvCache::Sequence* last = nullptr;
        for (std::size_t i = 0, run = 0; i < rows.size() && run < runs.size(); ++i) {
            const KvCache::Sequence* const kv = rows[part.order[i]].kv;
            if (std::exchange(last, kv) != kv) first_runs_.try_emplace(kv, lane, run++);
        }
        part.rows = in_order(rows, part.order);
        part.x.resize(rows.size() * config_.hidden_size);
        all.insert(all.end(), rows.begin(), rows.end());
    }
    return steps_.begin(in_order(all, by_sequence(all)), parts.size(), may_leave);
}

void GpuSpans::enter(std::uint32_t layer) {
    if (parts_.empty()) return;
    for (; entered_ <= layer; ++entered_) steps_.enter_layer(entered_);
}

std::uint32_t GpuSpans::border(std::size_t part) const {
    if (parts_.empty()) return config_.num_layers;
    std::uint32_t layer = parts_[part].from;
    while (layer < config_.num_layers && !steps_.starts(layer) && !steps_.ends(part, layer))
        ++layer;
    return layer;
}

Result<bool> GpuSpans::cross(std::size_t part, std::uint32_t layer,
                             std::span<const std::uint32_t> index, StepResult& result,
                             const std::stop_token& stop) {
    enter(layer);
    Part& mine = parts_[part];
    mine.from = layer + 1;
    MOEX_TRY(read_residual(part));
    // A check that ends here is compared, and its answer is not used.
    MOEX_TRY(end_span(part, layer, index, result, stop));
    if (!steps_.starts(layer) || !steps_.leave(part, layer, mine.rows, mine.x)) return false;
    mine.end = layer + 1;
    while (!steps_.ends(part, mine.end)) ++mine.end;
    return true;
}

Result<std::optional<SpanSteps::Layers>> GpuSpans::come_back(std::size_t part,
                                                             std::span<const std::uint32_t> index,
                                                             StepResult& result,
                                                             const std::stop_token& stop) {
    Part& mine = parts_[part];
    const std::uint32_t end = std::exchange(mine.end, 0);
    enter(end);
    mine.from = end;  // another span may begin here
    MOEX_ASSIGN(missing, end_span(part, end, index, result, stop));
    if (missing) return missing;

    const std::size_t size = config_.hidden_size;
    std::vector<float> x(mine.x.size());
    for (std::size_t i = 0; i < mine.order.size(); ++i)
        std::copy_n(mine.x.begin() + static_cast<std::ptrdiff_t>(i * size), size,
                    x.begin() + static_cast<std::ptrdiff_t>(mine.order[i] * size));
    decoder_->skip_to(end, x, static_cast<std::uint32_t>(part));
    return missing;
}

Result<std::optional<SpanSteps::Layers>> GpuSpans::end_span(std::size_t part, std::uint32_t layer,
                                                            std::span<const std::uint32_t> index,
                                                            StepResult& result,
                                                            const std::stop_token& stop) {
    Part& mine = parts_[part];
    StepResult added;
    added.rows.resize(mine.rows.size());
    added.row_workers.resize(mine.rows.size());
    MOEX_ASSIGN(missing, steps_.come_back(part, layer, mine.rows, mine.x, added, 0, stop));
    add_provenance(added, mine.order, index, result);
    return missing;
}

Status GpuSpans::computed(std::size_t part, std::uint32_t layer) {
    if (parts_.empty() || config_.has_keys(layer) || !steps_.wants_kept(part, layer)) return {};
    const Part& mine = parts_[part];
    Bytes kept;
    const auto take = [&](ByteView bytes) {
        const std::size_t row_bytes = bytes.size() / mine.order.size();
        for (const std::uint32_t row : mine.order) {
            const ByteView one = bytes.subspan(row * row_bytes, row_bytes);
            kept.insert(kept.end(), one.begin(), one.end());
        }
    };
    MOEX_TRY(read_back<ByteView>(
        loop_, device_,
        [&](auto done) { decoder_->read_kept(layer, static_cast<std::uint32_t>(part), done); },
        take));
    steps_.keep(part, layer, std::move(kept));
    return {};
}

Result<std::vector<float>> GpuSpans::state_before_step(const SequenceRow& row,
                                                       std::uint32_t layer) {
    const auto [lane, run] = first_runs_.at(row.kv);
    std::vector<float> state;
    MOEX_TRY(read_back<std::span<const float>>(
        loop_, device_, [&](auto done) { decoder_->read_state(layer, lane, run, done); },
        [&](std::span<const float> floats) { state.assign(floats.begin(), floats.end()); }));
    return state;
}

Status GpuSpans::take_kept(std::size_t part, std::span<const SequenceRow> rows, std::uint32_t layer,
                           ByteView kept) {
    const std::size_t row_bytes = kept.size() / rows.size(), size = row_bytes / sizeof(half);
    std::vector<float> in_order(rows.size() * size);
    for (std::size_t i = 0; i < rows.size(); ++i)
        floats_of_halves(kept.data() + i * row_bytes, size,
                         &in_order[parts_[part].order[i] * size]);
    decoder_->take_kept(layer, static_cast<std::uint32_t>(part), in_order);
    return {};
}

// Reads the residual stream of a part, and puts its rows into the order of sequences.
Status GpuSpans::read_residual(std::size_t part) {
    Part& mine = parts_[part];
    const auto take = [&](std::span<const float> rows) {
        const std::size_t size = config_.hidden_size;
        for (std::size_t i = 0; i < mine.order.size(); ++i)
            std::ranges::copy(rows.subspan(mine.order[i] * size, size),
                              mine.x.begin() + static_cast<std::ptrdiff_t>(i * size));
    };
    return read_back<std::span<const float>>(
        loop_, device_,
        [&](auto done) { decoder_->read_residual(done, static_cast<std::uint32_t>(part)); }, take);
}

// Lists rows and the page tables of their sequences as a pass has them. The result is valid until
// the next call.
DecoderBatch GpuSpans::list_rows(std::span<const SequenceRow> rows) {
    step_rows_.clear();
    pages_.clear();
    window_pages_.clear();
    std::uint32_t first_page = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i == 0 || rows[i].kv != rows[i - 1].kv) {
            first_page = static_cast<std::uint32_t>(pages_.size());
            const auto table = rows[i].kv->pages();
            pages_.insert(pages_.end(), table.begin(), table.end());
            if (decoder_->num_window_slots() > 0) rows[i].kv->list_window_slots(window_pages_);
        }
        step_rows_.push_back({.position = rows[i].position, .first_page = first_page});
    }
    return {.rows = step_rows_, .pages = pages_, .window_pages = window_pages_};
}

Status GpuSpans::read_some(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                           std::uint32_t end_layer, const std::function<void(ByteView kv)>& take) {
    return read_back<ByteView>(
        loop_, device_,
        [&](auto done) { decoder_->read_kv_rows(list_rows(rows), first_layer, end_layer, done); },
        take);
}

Status GpuSpans::read(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                      std::uint32_t end_layer, std::span<std::byte> out) {
    const std::size_t row_bytes = kv_row_bytes(), most = decoder_->kv_rows_max();
    for (std::size_t first = 0; first < rows.size(); first += most) {
        const std::size_t count = std::min(most, rows.size() - first), bytes = count * row_bytes;
        MOEX_TRY(read_some(rows.subspan(first, count), first_layer, end_layer, [&](ByteView kv) {
            for (std::size_t layer = 0; layer < end_layer - first_layer; ++layer)
                std::memcpy(out.data() + (layer * rows.size() + first) * row_bytes,
                            kv.data() + layer * bytes, bytes);
        }));
    }
    clear_unseen(rows, first_layer, end_layer, out);
    return {};
}

// Replaces rows that no window sees any more by zeros: their slots have the rows of other pages.
void GpuSpans::clear_unseen(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                            std::uint32_t end_layer, std::span<std::byte> out) const {
    const std::size_t row_bytes = kv_row_bytes();
    if (decoder_->num_window_slots() == 0) return;
    for (std::uint32_t layer = first_layer; layer < end_layer; ++layer)
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (config_.layers[layer].window > 0 &&
                !rows[i].kv->has_window_rows(rows[i].position / kv_page_tokens))
                std::ranges::fill(
                    out.subspan(((layer - first_layer) * rows.size() + i) * row_bytes, row_bytes),
                    std::byte{0});
}

// The rows are those of a part, which fit into one copy.
Status GpuSpans::write(std::span<const SequenceRow> rows, std::uint32_t first_layer,
                       std::uint32_t end_layer, ByteView kv) {
    decoder_->write_kv_rows(list_rows(rows), first_layer, end_layer, kv);
    return {};
}

}  // namespace moex
