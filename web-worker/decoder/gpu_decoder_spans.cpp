// Layers that others compute: the part of the decoder that computes a span for a hub, and the part
// that lets others compute layers of a pass.
#include "protocol/text.h"
#include "web-worker/decoder/copy_command.h"
#include "web-worker/decoder/gpu_decoder.h"

namespace moex {

void GpuDecoder::compute_span(const DecoderBatch& batch, std::span<const float> x,
                              std::function<void(Result<SpanOutput>)> done) {
    MOEX_CHECK(model_.is_span && sizes_.kv_kind == KvKind::f16, "this decoder is no span");
    MOEX_CHECK(x.size() == batch.rows.size() * model_.hidden_size && batch.num_logits == 0,
               text(x.size(), " values for ", batch.rows.size(), " rows of a span"));
    start(batch);
    Lane& lane = lanes_.front();
    const DecoderMemory::Lane& buffers = memory_->lanes.front();
    device_.write_buffer(buffers.x, 0, std::as_bytes(x));

    commands_.clear();
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        lane.ops->append_layer(commands_, layer, lane.rows, lane.pages, lane.num_runs);
    lane.ops->append_end_of_span(commands_, lane.rows);
    lane.ops->append_kv_gather(commands_, lane.rows, 0, model_.num_layers);

    std::uint64_t to = x.size_bytes();
    commands_.push_back(copy_command(buffers.x, 0, span_readback_, 0, to));
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer) {
        const std::uint64_t layer_bytes = DecoderMemory::span_kv_layer_bytes(model_, layer,
                                                                             lane.rows);
        commands_.push_back(copy_command(memory_->span_kv,
                                         DecoderMemory::span_kv_at(model_, layer, sizes_.rows),
                                         span_readback_, to, layer_bytes));
        commands_.back().same_stage = true;
        to += layer_bytes;
    }
    device_.submit(commands_);
    commands_.clear();
    device_.read_buffer(
        span_readback_, to,
        [num_floats = x.size(), done = std::move(done),
         life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            if (!bytes.ok()) return done(bytes.error());
            done(SpanOutput{{reinterpret_cast<const float*>(bytes->data()), num_floats},
                            bytes->subspan(sizeof(float) * num_floats)});
        });
}

void GpuDecoder::write_span_kv(const DecoderBatch& batch, ByteView kv) {
    MOEX_CHECK(model_.is_span, "this decoder is no span");
    const auto rows = static_cast<std::uint32_t>(batch.rows.size());
    write_rows(batch.rows, rows, batch.num_pages);
    device_.write_buffer(memory_->lanes.front().page_table, 0, std::as_bytes(batch.pages));
    std::uint64_t at = 0;
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer) {
        if (model_.is_delta(layer)) continue;
        const std::uint64_t layer_bytes = DecoderMemory::span_kv_layer_bytes(model_, layer, rows);
        MOEX_CHECK(at + layer_bytes <= kv.size(), text(kv.size(), " bytes for ", rows, " rows"));
        device_.write_buffer(memory_->span_kv,
                             DecoderMemory::span_kv_at(model_, layer, sizes_.rows),
                             kv.subspan(at, layer_bytes));
        at += layer_bytes;
    }
    MOEX_CHECK(at == kv.size(), text(kv.size(), " bytes for ", rows, " rows"));
    commands_.clear();
    ops().append_kv_scatter(commands_, rows, 0, model_.num_layers);
    device_.submit(commands_);
    commands_.clear();
}

void GpuDecoder::clear_page(std::uint32_t page) {
    page_bytes_.assign(DecoderMemory::kv_page_bytes(model_, sizes_.kv_kind), std::byte{0});
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        if (!model_.is_delta(layer))
            device_.write_buffer(memory_->layers[layer].kv, page_bytes_.size() * page, page_bytes_);
}

void GpuDecoder::read_residual(std::function<void(Result<std::span<const float>>)> done,
                               std::uint32_t lane) {
    const Lane& mine = lanes_[lane];
    MOEX_CHECK(sizes_.sends_layers && mine.is_whole, "the pass has not stopped before a layer");
    device_.read_buffer(rows_readback_,
                        sizeof(float) * std::uint64_t{mine.rows} * model_.hidden_size,
                        [done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            if (!bytes.ok()) return done(bytes.error());
                            done(std::span(reinterpret_cast<const float*>(bytes->data()),
                                           bytes->size() / sizeof(float)));
                        });
}

void GpuDecoder::skip_to(std::uint32_t layer, std::span<const float> x, std::uint32_t lane) {
    Lane& mine = lanes_[lane];
    MOEX_CHECK(mine.is_whole && layer >= mine.next_layer && layer < model_.num_layers &&
                   x.size() == std::size_t{mine.rows} * model_.hidden_size,
               text("from layer ", mine.next_layer, " to layer ", layer, " with ", x.size(),
                    " values for ", mine.rows, " rows"));
    mine.next_layer = layer;
    device_.write_buffer(memory_->lanes[lane].x, 0, std::as_bytes(x));
}

void GpuDecoder::write_copied_rows(const DecoderBatch& batch) {
    MOEX_CHECK(sizes_.sends_layers && batch.rows.size() <= sizes_.rows &&
                   batch.pages.size() <= sizes_.table_entries,
               text(batch.rows.size(), " rows of ", batch.pages.size(), " pages are copied"));
    for (const StepRow& row : batch.rows)
        MOEX_CHECK(row.first_page + row.position / kv_page_tokens < batch.pages.size(),
                   text("position ", row.position, " is beyond its page table"));
    device_.write_buffer(memory_->copied_rows, sizeof(std::uint32_t) * step_header_words,
                         std::as_bytes(batch.rows));
    device_.write_buffer(memory_->copied_pages, 0, std::as_bytes(batch.pages));
    if (sizes_.window_slots == 0) return;
    MOEX_CHECK(batch.window_pages.size() == batch.pages.size(), "a page has no slot");
    device_.write_buffer(memory_->copied_window_pages, 0, std::as_bytes(batch.window_pages));
}

void GpuDecoder::read_kv_rows(const DecoderBatch& batch, std::uint32_t first_layer,
                              std::uint32_t end_layer, std::function<void(Result<ByteView>)> done) {
    write_copied_rows(batch);
    commands_.clear();
    ops().append_kv_gather(commands_, static_cast<std::uint32_t>(batch.rows.size()), first_layer,
                           end_layer);
    const std::uint64_t layer_bytes = DecoderMemory::span_kv_layer_bytes(model_, first_layer,
                                                                         batch.rows.size());
    std::uint64_t to = 0;
    for (std::uint32_t layer = first_layer; layer < end_layer; ++layer, to += layer_bytes) {
        commands_.push_back(copy_command(memory_->span_kv,
                                         DecoderMemory::span_kv_at(model_, layer, sizes_.rows),
                                         kv_readback_, to, layer_bytes));
        commands_.back().same_stage = layer != first_layer;
    }
    device_.submit(commands_);
    commands_.clear();
    device_.read_buffer(kv_readback_, to,
                        [done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
                            if (life.alive()) done(std::move(bytes));
                        });
}

void GpuDecoder::write_kv_rows(const DecoderBatch& batch, std::uint32_t first_layer,
                               std::uint32_t end_layer, ByteView kv) {
    const std::uint64_t layer_bytes = DecoderMemory::span_kv_layer_bytes(model_, first_layer,
                                                                         batch.rows.size());
    MOEX_CHECK(kv.size() == layer_bytes * (end_layer - first_layer),
               text(kv.size(), " bytes of keys and values for ", batch.rows.size(), " rows"));
    write_copied_rows(batch);
    for (std::uint32_t layer = first_layer; layer < end_layer; ++layer)
        device_.write_buffer(memory_->span_kv,
                             DecoderMemory::span_kv_at(model_, layer, sizes_.rows),
                             kv.subspan((layer - first_layer) * layer_bytes, layer_bytes));
    commands_.clear();
    ops().append_kv_scatter(commands_, static_cast<std::uint32_t>(batch.rows.size()), first_layer,
                            end_layer);
    device_.submit(commands_);
    commands_.clear();
}

void GpuDecoder::read_kept(std::uint32_t layer, std::uint32_t lane,
                           std::function<void(Result<ByteView>)> done) {
    const std::uint32_t num_rows = lanes_[lane].rows;
    const std::uint64_t bytes = DecoderMemory::span_kv_layer_bytes(model_, layer, num_rows);
    commands_.clear();
    ops().append_kept(commands_, layer, num_rows);
    commands_.push_back(copy_command(memory_->span_kv,
                                     DecoderMemory::span_kv_at(model_, layer, sizes_.rows),
                                     kv_readback_, 0, bytes));
    device_.submit(commands_);
    commands_.clear();
    device_.read_buffer(kv_readback_, bytes,
                        [done = std::move(done), life = life_.watch()](Result<ByteView> kept) {
                            if (life.alive()) done(std::move(kept));
                        });
}

void GpuDecoder::take_kept(std::uint32_t layer, std::uint32_t lane, std::span<const float> kept) {
    const Lane& mine = lanes_[lane];
    const std::size_t channels = model_.delta_channels(), stride = model_.mixer_rows(layer),
                      gates = 2 * std::size_t{model_.delta_value_heads};
    MOEX_CHECK(sizes_.sends_layers && model_.is_delta(layer) &&
                   kept.size() == mine.rows * (channels + gates),
               text(kept.size(), " values that layer ", layer, " keeps of ", mine.rows, " rows"));
    std::vector<float> inputs(mine.rows * stride), of_gates(mine.rows * gates);
    for (std::size_t row = 0; row < mine.rows; ++row) {
        const auto from = kept.subspan(row * (channels + gates), channels + gates);
        std::copy_n(from.begin(), channels, &inputs[row * stride]);
        std::copy_n(&from[channels], gates, &of_gates[row * gates]);
    }
    device_.write_buffer(memory_->qkv, 0, std::as_bytes(std::span(inputs)));
    device_.write_buffer(memory_->delta_gates, 0, std::as_bytes(std::span(of_gates)));
    commands_.clear();
    mine.ops->append_recurrence(commands_, layer, mine.num_runs);
    device_.submit(commands_);
    commands_.clear();
}

void GpuDecoder::read_state(std::uint32_t layer, std::uint32_t lane, std::size_t run,
                            std::function<void(Result<std::span<const float>>)> done) {
    const Lane& mine = lanes_[lane];
    DeltaRun before = mine.runs[run];
    const std::uint64_t all = DecoderMemory::state_bytes(model_),
                        s_bytes = sizeof(float) * model_.delta_state_size();
    std::uint32_t slot = before.from_slot;
    MOEX_CHECK(slot != DeltaRun::no_slot || before.num_replayed > 0, "a text without a state");
    commands_.clear();
    if (before.num_replayed > 0) {
        // Compute the state behind the replayed rows.
        slot = sizes_.state_slots - 1;
        before.to_slots[0] = slot;
        before.store_after[0] = before.num_replayed;
        before.store_after[1] = before.num_rows = before.mixed_at = before.keeps_rows = 0;
        device_.write_buffer(memory_->lanes[lane].runs, 0, std::as_bytes(std::span(&before, 1)));
        mine.ops->append_recurrence(commands_, layer, 1);
    }
    const DecoderMemory::Layer& memory = memory_->layers[layer];
    commands_.push_back(copy_command(memory.state, slot * s_bytes, kv_readback_, 0, s_bytes));
    commands_.push_back(
        copy_command(memory.columns, slot * (all - s_bytes), kv_readback_, s_bytes, all - s_bytes));
    commands_.back().same_stage = true;
    device_.submit(commands_);
    commands_.clear();
    if (before.num_replayed > 0)
        device_.write_buffer(memory_->lanes[lane].runs, 0, std::as_bytes(std::span(mine.runs)));
    device_.read_buffer(kv_readback_, all,
                        [done = std::move(done), life = life_.watch()](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            if (!bytes.ok()) return done(bytes.error());
                            done(std::span(reinterpret_cast<const float*>(bytes->data()),
                                           bytes->size() / sizeof(float)));
                        });
}

}  // namespace moex
