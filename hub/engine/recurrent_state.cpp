#include "hub/engine/recurrent_state.h"

#include <algorithm>

namespace moex {

RecurrentShape RecurrentShape::of(const ModelConfig& config) {
    const DeltaNetSizes& sizes = config.delta_net;
    const auto num_layers = std::count_if(
        config.layers.begin(), config.layers.end(),
        [](const LayerPlan& plan) { return plan.mixer == Mixer::gated_delta_rule; });
    return {.delta = {sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim},
            .conv_taps = sizes.conv_taps,
            .num_layers = static_cast<std::uint32_t>(num_layers)};
}

// The floats are not initialised: a text that begins at position 0 reads none of them.
RecurrentBlock::RecurrentBlock(const RecurrentShape& shape)
    : floats(new float[shape.num_layers * shape.floats_of_layer()]),
      borders(shape.num_layers) {}

std::unique_ptr<RecurrentBlock> RecurrentBlocks::take() {
    ++num_used_;
    if (spare_.empty()) return std::make_unique<RecurrentBlock>(shape_);
    auto block = std::move(spare_.back());
    spare_.pop_back();
    return block;
}

void RecurrentBlocks::give(std::unique_ptr<RecurrentBlock> block) {
    if (!block) return;
    --num_used_;
    spare_.push_back(std::move(block));
}

void RecurrentBlocks::trim(std::size_t blocks_max) {
    while (!spare_.empty() && num_used_ + spare_.size() > blocks_max) spare_.pop_back();
}

RecurrentState::RecurrentState(RecurrentBlocks& blocks)
    : blocks_(blocks),
      now_(blocks.take()),
      is_written_(blocks.shape().num_layers) {}

RecurrentState::~RecurrentState() {
    blocks_.give(std::move(now_));
    blocks_.give(std::move(next_));
}

void RecurrentState::begin_step(std::uint32_t first, std::uint32_t num_rows) {
    settled_ = first;
    end_ = first + num_rows;
    is_written_.assign(is_written_.size(), false);
    if (num_rows <= delta_append_max)
        blocks_.give(std::move(next_));
    else if (!next_)
        next_ = blocks_.take();
}

void RecurrentState::commit() {
    kept_from_ = next_ ? end_ : settled_;
    if (!next_) return;
    now_.swap(next_);
    blocks_.give(std::move(next_));
}

bool RecurrentState::can_copy() const {
    const RecurrentShape& shape = blocks_.shape();
    return border() > 0 && end_ - border() <= shape.columns() - (shape.conv_taps - 1);
}

void RecurrentState::copy_to(std::span<float> snapshot) const {
    const RecurrentShape& shape = blocks_.shape();
    const std::size_t matrix = DeltaMemory::num_matrix_floats(shape.delta),
                      channels = shape.channels();
    float* to = snapshot.data();
    for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
        to = std::copy_n(delta_floats(*now_, layer).data(), matrix, to);
        for (std::uint32_t back = shape.conv_taps - 1; back > 0; --back)
            to = std::copy_n(&columns(*now_, layer)[(border() - back) % shape.columns() * channels],
                             channels, to);
    }
}

void RecurrentState::restore(const float* snapshot, std::uint32_t num_tokens) {
    const RecurrentShape& shape = blocks_.shape();
    const std::size_t matrix = DeltaMemory::num_matrix_floats(shape.delta),
                      channels = shape.channels();
    for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
        std::copy_n(snapshot, matrix, delta_floats(*now_, layer).data());
        snapshot += matrix;
        for (std::uint32_t back = shape.conv_taps - 1; back > 0; --back, snapshot += channels)
            std::copy_n(snapshot, channels,
                        &columns(*now_, layer)[(num_tokens - back) % shape.columns() * channels]);
        now_->borders[layer] = num_tokens;
    }
    settled_ = end_ = kept_from_ = num_tokens;
}

void RecurrentState::fill(const std::function<float()>& next) {
    RecurrentBlock& block = next_ ? *next_ : *now_;
    const RecurrentShape& shape = blocks_.shape();
    std::generate_n(block.floats.get(), shape.num_layers * shape.floats_of_layer(),
                    [&] { return 0.01f * next(); });
    const std::uint32_t border = end_ == 0 ? 0 : (end_ - 1) / delta_chunk * delta_chunk;
    block.borders.assign(block.borders.size(), border);
}

std::span<float> RecurrentState::delta_floats(RecurrentBlock& block, std::uint32_t index) const {
    const RecurrentShape& shape = blocks_.shape();
    return {block.floats.get() + index * shape.floats_of_layer(),
            DeltaMemory::num_floats(shape.delta)};
}

std::span<float> RecurrentState::columns(RecurrentBlock& block, std::uint32_t index) const {
    const RecurrentShape& shape = blocks_.shape();
    return {delta_floats(block, index).data() + DeltaMemory::num_floats(shape.delta),
            shape.columns() * shape.channels()};
}

std::vector<float> RecurrentState::before_step(std::uint32_t index) {
    const RecurrentShape& shape = blocks_.shape();
    const std::size_t channels = shape.channels();
    std::vector<float> state = DeltaMemory(shape.delta, delta_floats(*now_, index),
                                           now_->borders[index])
                                   .matrices_before(settled_);
    const std::span<const float> kept = columns(*now_, index);
    for (std::uint32_t back = shape.conv_taps - 1; back > 0; --back) {
        if (back > settled_) {
            state.insert(state.end(), channels, 0.0f);
            continue;
        }
        const auto column = kept.subspan((settled_ - back) % shape.columns() * channels, channels);
        state.insert(state.end(), column.begin(), column.end());
    }
    return state;
}

RecurrentState::Layer RecurrentState::layer(std::uint32_t index) {
    const bool extends = next_ != nullptr;
    RecurrentBlock &to = extends ? *next_ : *now_,
                   &from = extends && is_written_[index] ? to : *now_;
    if (extends) is_written_[index] = true;
    const DeltaShape& shape = blocks_.shape().delta;
    return {.from = DeltaMemory(shape, delta_floats(from, index), from.borders[index]),
            .to = DeltaMemory(shape, delta_floats(to, index), to.borders[index]),
            .from_columns = columns(from, index),
            .to_columns = columns(to, index),
            .settled_position = settled_,
            .extends = extends};
}

}  // namespace moex
