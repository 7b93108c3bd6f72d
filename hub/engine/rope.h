// Rotary position embedding over the two halves of a head
// ("rotate_half"): element i turns with element i + head_dim/2.
// Source: Su et al., "RoFormer", 2021; the half-split form is transformers'.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/rope.h"

namespace moex {

class Rope {
  public:
    // `head_dim` even.
    Rope(std::uint32_t head_dim, double theta, const RopeScaling& scaling = {});
    std::uint32_t head_dim() const {
        return static_cast<std::uint32_t>(2 * inverse_frequency_.size());
    }
    // cos then sin of one position, [head_dim] in all; shared by every head and layer of a row.
    void angles(std::uint32_t position, std::span<float> cos_sin) const;
    static void rotate(std::span<float> head, std::span<const float> cos_sin);

  private:
    std::vector<float> inverse_frequency_;  // [head_dim / 2]
};

}  // namespace moex
