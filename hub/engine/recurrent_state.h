// What the layers with a gated delta rule remember of a sequence: for each such layer a matrix per
// head with the rows of the latest chunk (delta_rule.h), and the latest inputs of its convolution.
// The size does not depend on the length of the sequence.
// A step with few rows writes into the state itself and can be rolled back. A step with more rows
// writes a second block, which replaces the first one at the end of the step; so a step that fails
// changes nothing.
// Owner: the engine's thread. Within a step, different heads may be used by different threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hub/engine/delta_rule.h"
#include "hub/model/config.h"

namespace moex {

// The sizes of the state, the same in all layers with a gated delta rule.
struct RecurrentShape {
    DeltaShape delta;
    std::uint32_t conv_taps = 0;  // tokens that an output of the convolution sees, its own included
    std::uint32_t num_layers = 0;  // layers with a gated delta rule; 0: the model has none

    static RecurrentShape of(const ModelConfig& config);
    // channels of the convolution: all q, all k, all v
    std::size_t channels() const {
        return 2 * std::size_t{delta.key_heads} * delta.key_dim +
               std::size_t{delta.value_heads} * delta.value_dim;
    }
    // Values that a span's holder returns for a row in one layer (protocol/span_messages.h): the
    // inputs of the convolution, then b and a of each value head.
    std::uint32_t kept_values() const {
        return static_cast<std::uint32_t>(channels() + 2 * std::size_t{delta.value_heads});
    }
    // Number of positions that keep their inputs of the convolution.
    std::uint32_t columns() const { return conv_taps - 1 + delta_append_max; }
    std::size_t floats_of_layer() const {
        return DeltaMemory::num_floats(delta) + columns() * channels();
    }
    // Floats of a layer in a copy at a border: S, and the inputs of the convolution before it.
    std::size_t snapshot_floats_of_layer() const {
        return DeltaMemory::num_matrix_floats(delta) + (conv_taps - 1) * channels();
    }
    // bytes of one block
    std::uint64_t size_bytes() const {
        return std::uint64_t{num_layers} *
               (floats_of_layer() * sizeof(float) + sizeof(std::uint32_t));
    }
};

struct RecurrentBlock {
    explicit RecurrentBlock(const RecurrentShape& shape);
    std::unique_ptr<float[]> floats;     // [num_layers, floats_of_layer()]
    std::vector<std::uint32_t> borders;  // [num_layers], of DeltaMemory
};

// Blocks that no sequence uses at present.
class RecurrentBlocks {
  public:
    explicit RecurrentBlocks(const RecurrentShape& shape) : shape_(shape) {}
    const RecurrentShape& shape() const { return shape_; }
    std::unique_ptr<RecurrentBlock> take();
    void give(std::unique_ptr<RecurrentBlock> block);
    // Frees spare blocks until there are at most `blocks_max` in all, or none is spare.
    void trim(std::size_t blocks_max);
    std::uint64_t used_bytes() const { return num_used_ * shape_.size_bytes(); }
    std::uint64_t spare_bytes() const { return spare_.size() * shape_.size_bytes(); }

  private:
    RecurrentShape shape_;
    std::uint64_t num_used_ = 0;
    std::vector<std::unique_ptr<RecurrentBlock>> spare_;
};

class RecurrentState {
  public:
    // `blocks` outlives the state.
    explicit RecurrentState(RecurrentBlocks& blocks);
    ~RecurrentState();

    // Begins a step of `num_rows` rows from position `first` on.
    void begin_step(std::uint32_t first, std::uint32_t num_rows);
    // Ends a step: its rows were computed in all layers.
    void commit();
    // Ends a step that failed: the state is the one from before it.
    void abandon_step() { blocks_.give(std::move(next_)); }
    // For benches: between begin_step() and commit(), gives all layers values of `next` instead of
    // computed ones.
    void fill(const std::function<float()>& next);
    // Returns the earliest position to which the sequence can be rolled back without computing it
    // again.
    std::uint32_t kept_from() const { return kept_from_; }

    // Between steps: the border of all layers, a multiple of delta_chunk.
    std::uint32_t border() const { return now_->borders.front(); }
    // Returns false if the state at the border is not complete any more: the inputs of the
    // convolution before it are gone.
    bool can_copy() const;
    // Copies the state at the border, [num_layers, snapshot_floats_of_layer()].
    void copy_to(std::span<float> snapshot) const;
    // Becomes the state of a text of `num_tokens` tokens, a multiple of delta_chunk, from a copy.
    void restore(const float* snapshot, std::uint32_t num_tokens);

    // The memory of one layer in the current step. `index` counts the layers with a gated delta
    // rule. `from` is read and `to` is written; they are the same memory in a step of few rows, and
    // from the second part of a step's rows on.
    struct Layer {
        DeltaMemory from, to;
        // [columns(), channels()]: the input at position p is row p % columns()
        std::span<const float> from_columns;
        std::span<float> to_columns;
        std::uint32_t settled_position = 0;
        bool extends = false;  // use DeltaMemory::extend(), not append()
    };
    Layer layer(std::uint32_t index);
    // In a step, before its rows: returns the state of one layer before the step's first row, as a
    // worker continues with it: S [value_heads, key_dim, value_dim], then the latest inputs of the
    // convolution [conv_taps - 1, channels], the oldest first; zeros before position 0.
    std::vector<float> before_step(std::uint32_t index);

  private:
    std::span<float> delta_floats(RecurrentBlock& block, std::uint32_t index) const;
    std::span<float> columns(RecurrentBlock& block, std::uint32_t index) const;

    RecurrentBlocks& blocks_;
    std::unique_ptr<RecurrentBlock> now_, next_;
    std::vector<bool> is_written_;         // [num_layers]: next_ has rows of the current step
    std::uint32_t settled_ = 0, end_ = 0;  // of the current step
    std::uint32_t kept_from_ = 0;
};

}  // namespace moex
