#include "web-worker/spans/span_decoder.h"

#include <algorithm>

namespace moex {
namespace {

constexpr std::array<std::uint32_t, 3> measured_rows = {1, 8, 64};
// The id of a sequence that exists only while the decoder is measured.
constexpr std::uint64_t measuring_id = ~std::uint64_t{0};

}  // namespace

std::uint32_t SpanDecoder::rows_of_a_frame(const DecoderModel& model) {
    std::uint64_t row_bytes = sizeof(float) * model.hidden_size;
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer)
        row_bytes += DecoderMemory::span_kv_layer_bytes(model, layer, 1);
    return static_cast<std::uint32_t>((frame_bytes_max - 4096) / row_bytes);
}

SpanDecoder::SpanDecoder(std::unique_ptr<GpuDecoder> decoder, std::uint32_t context_tokens,
                         std::uint32_t sequences_max)
    : decoder_(std::move(decoder)),
      pages_(decoder_->num_pages(), kv_page_tokens,
             std::min(context_tokens, decoder_->context_tokens())),
      states_(sequences_max),
      rows_max_(
          std::min({decoder_->rows_max(), span_rows_max, rows_of_a_frame(decoder_->model())})),
      sequences_max_(sequences_max) {
    const DecoderModel& model = decoder_->model();
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer)
        if (model.is_delta(layer)) recurrent_.push_back(layer);
}

// Lists the rows of a step, after their pages were reserved.
DecoderBatch SpanDecoder::batch_of(std::span<const SpanSequence> sequences) {
    rows_.clear();
    tables_.clear();
    DecoderBatch batch;
    for (const SpanSequence& one : sequences) {
        const std::span<const std::uint32_t> pages = pages_.pages(one.id);
        const auto first_page = static_cast<std::uint32_t>(tables_.size());
        tables_.insert(tables_.end(), pages.begin(), pages.end());
        batch.num_pages = std::max(batch.num_pages, static_cast<std::uint32_t>(pages.size()));
        for (std::uint32_t i = 0; i < one.num_rows; ++i)
            rows_.push_back({.position = one.num_before + i, .first_page = first_page});
    }
    batch.rows = rows_;
    batch.pages = tables_;
    return batch;
}

void SpanDecoder::clear(std::vector<std::uint32_t>& freed) {
    for (const std::uint32_t page : freed) decoder_->clear_page(page);
    freed.clear();
}

void SpanDecoder::clear(const SpanStates::Freed& freed) {
    for (const std::uint32_t slot : freed.slots) decoder_->clear_state(slot);
    for (const std::uint32_t journal : freed.journals) decoder_->clear_journal(journal);
}

void SpanDecoder::step(const SpanStep& step, std::function<void(Result<SpanAnswer>)> done) {
    SpanAnswer answer{.step = step.step, .span = step.span, .dtype = step.dtype};
    std::vector<std::uint32_t> freed;
    if (step.num_rows() > rows_max_)
        answer.verdict = SpanVerdict::no_pages;
    else if (!recurrent_.empty())
        answer.verdict = states_.check(step.sequences);
    if (answer.verdict == SpanVerdict::done) answer.verdict = pages_.reserve(step.sequences, freed);
    clear(freed);
    if (answer.verdict != SpanVerdict::done) {
        std::vector<std::uint64_t> ids;
        for (const SpanSequence& one : step.sequences) ids.push_back(one.id);
        end(ids);
        return done(std::move(answer));
    }

    DecoderBatch batch = batch_of(step.sequences);
    if (!recurrent_.empty()) {
        runs_ = states_.begin(step.sequences);
        batch.runs = runs_;
        const DecoderModel& model = decoder_->model();
        answer.row_values = static_cast<std::uint32_t>(
            (num_layers() - recurrent_.size()) * 2 * model.kv_size() +
            recurrent_.size() * (model.delta_channels() + 2 * model.delta_value_heads));
    }
    answer.num_rows = step.num_rows();
    answer.num_layers = num_layers();
    answer.kv_size = decoder_->model().kv_size();
    decoder_->compute_span(
        batch, step.x,
        [answer = std::move(answer), done = std::move(done)](Result<SpanOutput> out) mutable {
            if (!out.ok()) return done(out.error());
            answer.x.assign(out->x.begin(), out->x.end());
            answer.kv.assign(out->kv.begin(), out->kv.end());
            done(std::move(answer));
        });
}

SpanVerdict SpanDecoder::take_kv(const SpanKv& kv) {
    const SpanVerdict verdict = store(kv);
    if (verdict != SpanVerdict::done) end(std::span(&kv.sequence, 1));
    return verdict;
}

SpanVerdict SpanDecoder::take_state(const SpanState& state) {
    const SpanVerdict verdict = store(state);
    if (verdict != SpanVerdict::done) end(std::span(&state.sequence, 1));
    return verdict;
}

SpanVerdict SpanDecoder::store(const SpanKv& kv) {
    if (kv.num_layers != num_layers() - recurrent_.size() ||
        kv.kv_size != decoder_->model().kv_size())
        return SpanVerdict::no_span;
    std::vector<std::uint32_t> freed;
    const SpanSequence rows{kv.sequence, kv.first, kv.num_rows};
    const SpanVerdict verdict = pages_.reserve(std::span(&rows, 1), freed);
    clear(freed);
    if (verdict != SpanVerdict::done) return verdict;

    // Store as many rows at a time as a step of the decoder may have.
    const std::uint64_t row_bytes = span_kv_bytes(1, 1, kv.kv_size);
    Bytes part;
    for (std::uint32_t first = 0; first < kv.num_rows; first += rows_max_) {
        const std::uint32_t count = std::min(rows_max_, kv.num_rows - first);
        part.clear();
        for (std::uint32_t layer = 0; layer < kv.num_layers; ++layer) {
            const ByteView rows_of_layer = ByteView(kv.rows).subspan(
                (std::uint64_t{layer} * kv.num_rows + first) * row_bytes, count * row_bytes);
            part.insert(part.end(), rows_of_layer.begin(), rows_of_layer.end());
        }
        const SpanSequence stretch{kv.sequence, kv.first + first, count};
        decoder_->write_span_kv(batch_of(std::span(&stretch, 1)), part);
    }
    return verdict;
}

SpanVerdict SpanDecoder::store(const SpanState& state) {
    const std::uint64_t floats = DecoderMemory::state_bytes(decoder_->model()) / sizeof(float);
    if (recurrent_.empty() || state.num_layers != recurrent_.size() ||
        state.floats.size() != floats)
        return SpanVerdict::no_span;
    // Without keys and values, nothing else says how many tokens there are.
    if (recurrent_.size() == num_layers()) {
        const std::uint32_t known = pages_.num_tokens(state.sequence);
        const SpanSequence rows{state.sequence, std::min(known, state.num_tokens),
                                state.num_tokens - std::min(known, state.num_tokens)};
        std::vector<std::uint32_t> freed;
        const SpanVerdict verdict = pages_.reserve(std::span(&rows, 1), freed);
        clear(freed);
        if (verdict != SpanVerdict::done) return verdict;
    }
    const auto slot = states_.bring(state.sequence, state.num_tokens);
    if (!slot) return SpanVerdict::no_pages;
    decoder_->write_state(*slot, recurrent_[state.index], state.floats);
    return SpanVerdict::done;
}

void SpanDecoder::end(std::span<const std::uint64_t> sequences) {
    std::vector<std::uint32_t> freed;
    SpanStates::Freed states;
    for (const std::uint64_t id : sequences) {
        pages_.end(id, freed);
        states_.end(id, states);
    }
    clear(freed);
    clear(states);
}

void SpanDecoder::end_all() {
    std::vector<std::uint32_t> freed;
    SpanStates::Freed states;
    pages_.end_all(freed);
    states_.end_all(states);
    clear(freed);
    clear(states);
}

void SpanDecoder::measure(std::function<double()> now_ms,
                          std::function<void(Result<std::array<std::uint32_t, 3>>)> done) {
    measure_next(0, {}, std::move(now_ms), std::move(done));
}

// Each size is computed twice. The first time may include the compilation of kernels.
void SpanDecoder::measure_next(std::size_t index, std::array<std::uint32_t, 3> us,
                               std::function<double()> now_ms,
                               std::function<void(Result<std::array<std::uint32_t, 3>>)> done) {
    if (index == 2 * measured_rows.size()) {
        end(std::span(&measuring_id, 1));
        return done(us);
    }
    SpanStep one{.sequences = {{measuring_id, 0, std::min(measured_rows[index / 2], rows_max_)}}};
    one.x.assign(std::size_t{one.num_rows()} * decoder_->model().hidden_size, 0.5f);
    const double began_ms = now_ms();
    step(one, [=, this, done = std::move(done)](Result<SpanAnswer> answer) mutable {
        if (!answer.ok()) return done(answer.error());
        const double layer_us = 1e3 * (now_ms() - began_ms) / num_layers();
        us[index / 2] = static_cast<std::uint32_t>(std::max(1.0, layer_us));
        measure_next(index + 1, us, std::move(now_ms), std::move(done));
    });
}

}  // namespace moex
