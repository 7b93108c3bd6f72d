// The rotations (RoPE) of a model's layers. Layers with the same plan share their angles, which are
// computed once for each row of a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/rope.h"
#include "hub/model/config.h"

namespace moex {

class LayerRopes {
  public:
    explicit LayerRopes(const ModelConfig& config);
    // Number of floats of a row: cosines and sines of all distinct rotations.
    std::size_t row_size() const { return row_size_; }
    // Writes the cosines and sines of a position, [row_size()].
    void angles(std::uint32_t position, std::span<float> row) const;
    // Returns the part of such a row that `layer` uses.
    std::span<const float> cos_sin_of(std::uint32_t layer, std::span<const float> row) const {
        const One& one = ropes_[index_[layer]];
        return row.subspan(one.first, one.rope.rotary_size());
    }

  private:
    struct One {
        Rope rope;
        std::size_t first = 0;  // index of its first float in a row
    };
    std::vector<One> ropes_;
    std::vector<std::size_t> index_;  // [num_layers], into ropes_
    std::size_t row_size_ = 0;
};

}  // namespace moex
