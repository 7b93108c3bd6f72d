// Rotary position embedding over the two halves of a head ("rotate_half"): elements i and i +
// head_dim/2 form a pair that is rotated together. Source: Su et al., "RoFormer", 2021; the
// half-split form is from transformers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/rope.h"

namespace moex {

class Rope {
  public:
    // Computes the rotation for heads of `head_dim` values, which must be even.
    Rope(std::uint32_t head_dim, double theta, const RopeScaling& scaling = {});
    std::uint32_t head_dim() const {
        return static_cast<std::uint32_t>(2 * inverse_frequency_.size());
    }
    // Writes the cosines, then the sines of the rotation angles at a position, [head_dim] values in
    // total. All heads and layers of a row use the same angles.
    void angles(std::uint32_t position, std::span<float> cos_sin) const;
    static void rotate(std::span<float> head, std::span<const float> cos_sin);

  private:
    std::vector<float> inverse_frequency_;  // [head_dim / 2]
};

}  // namespace moex
