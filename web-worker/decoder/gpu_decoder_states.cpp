// Recurrent states that enter the decoder and leave it: of spans, and of pages that are kept.
#include <cstring>

#include "protocol/text.h"
#include "web-worker/decoder/copy_command.h"
#include "web-worker/decoder/gpu_decoder.h"

namespace moex {

std::uint64_t GpuDecoder::state_slot_bytes() const {
    std::uint64_t bytes = 0;
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        if (model_.is_delta(layer)) bytes += DecoderMemory::state_bytes(model_);
    return bytes;
}

void GpuDecoder::write_state(std::uint32_t slot, std::uint32_t layer,
                             std::span<const float> floats) {
    const std::uint64_t matrices = model_.delta_state_size(), size_bytes = floats.size_bytes();
    MOEX_CHECK(slot < sizes_.state_slots && model_.is_delta(layer) &&
                   size_bytes == DecoderMemory::state_bytes(model_),
               text(floats.size(), " floats of a state in slot ", slot));
    const ByteView bytes = std::as_bytes(floats), s = bytes.first(matrices * sizeof(float)),
                   columns = bytes.subspan(s.size());
    device_.write_buffer(memory_->layers[layer].state, slot * s.size(), s);
    device_.write_buffer(memory_->layers[layer].columns, slot * columns.size(), columns);
}

void GpuDecoder::clear_state(std::uint32_t slot) {
    const std::vector<float> zeros(DecoderMemory::state_bytes(model_) / sizeof(float));
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        if (model_.is_delta(layer)) write_state(slot, layer, zeros);
}

void GpuDecoder::clear_journal(std::uint32_t journal) {
    const Bytes zeros(DecoderMemory::journal_bytes(model_));
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        if (model_.is_delta(layer))
            device_.write_buffer(memory_->layers[layer].journal, journal * zeros.size(), zeros);
}

void GpuDecoder::write_state(std::uint32_t slot, ByteView state) {
    MOEX_CHECK(state.size() == state_slot_bytes(), text(state.size(), " bytes of a state"));
    const std::uint64_t layer_bytes = DecoderMemory::state_bytes(model_);
    std::vector<float> floats(layer_bytes / sizeof(float));
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer) {
        if (!model_.is_delta(layer)) continue;
        std::memcpy(floats.data(), state.data(), layer_bytes);
        write_state(slot, layer, floats);
        state = state.subspan(layer_bytes);
    }
}

void GpuDecoder::read_state(std::uint32_t slot, std::span<std::byte> state,
                            std::function<void(Status)> done) {
    MOEX_CHECK(slot < sizes_.state_slots && state.size() == state_slot_bytes(),
               text(state.size(), " bytes of a state in slot ", slot));
    if (state_readback_ == gpu::BufferId{}) {
        auto made = device_.create_buffer(state.size(), gpu::BufferUsage::readback, "state");
        if (!made.ok()) return done(made.error());
        state_readback_ = *made;
    }
    const std::uint64_t matrices = model_.delta_state_size() * sizeof(float),
                        columns = DecoderMemory::state_bytes(model_) - matrices;
    std::vector<gpu::Command> copies;
    std::uint64_t to = 0;
    const auto copy = [&](gpu::BufferId from, std::uint64_t bytes) {
        copies.push_back(copy_command(from, slot * bytes, state_readback_, to, bytes));
        copies.back().same_stage = copies.size() > 1;
        to += bytes;
    };
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer) {
        if (!model_.is_delta(layer)) continue;
        copy(memory_->layers[layer].state, matrices);
        copy(memory_->layers[layer].columns, columns);
    }
    device_.submit(copies);
    device_.read_buffer(
        state_readback_, to,
        [life = life_.watch(), state, done = std::move(done)](Result<ByteView> bytes) {
            if (!life.alive()) return;
            if (!bytes.ok()) return done(bytes.error());
            std::memcpy(state.data(), bytes->data(), state.size());
            done({});
        });
}

}  // namespace moex
