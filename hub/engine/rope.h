// Rotary position embedding over the two halves of a head ("rotate_half"): elements i and i +
// rotary_size/2 form a pair that is rotated together; rotary_size is mostly the whole head. Source:
// Su et al., "RoFormer", 2021; the half-split form is from transformers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/rope.h"

namespace moex {

class Rope {
  public:
    // Computes the rotation of `rotary_size` values of each head; the number must be even.
    Rope(std::uint32_t rotary_size, double theta, const RopeScaling& scaling = {});
    std::uint32_t rotary_size() const {
        return static_cast<std::uint32_t>(2 * inverse_frequency_.size());
    }
    // Writes the cosines, then the sines of the rotation angles at a position, [rotary_size] values
    // in total. All heads of a row use the same angles.
    void angles(std::uint32_t position, std::span<float> cos_sin) const;
    // Rotates the first values of a head, as many as cos_sin has.
    static void rotate(std::span<float> head, std::span<const float> cos_sin);

  private:
    std::vector<float> inverse_frequency_;  // [rotary_size / 2]
    float amplitude_;                       // factor of cosines and sines
};

}  // namespace moex
