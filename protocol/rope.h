// Rotary position embeddings: the rotation frequency of each pair of elements of a head. The hub's
// attention on CPU cores and the attention on a GPU both use it.
// Source: Su et al., "RoFormer", 2021; frequencies stretched for a longer context: transformers,
// rope_type "linear", "llama3" and "yarn".
#pragma once

#include <cstdint>
#include <vector>

namespace moex {

// How the frequencies are stretched for a context longer than that of the first training.
//   linear  every frequency is divided by `factor`
//   llama3  a frequency with fewer than low_freq_factor rotations within the first context is
//           divided by `factor`, one with more than high_freq_factor stays, one between is
//           interpolated
//   yarn    the same with beta_slow and beta_fast as bounds, interpolated over the index of the
//           pair; cosines and sines are multiplied by attention_factor. `truncate` rounds the
//           bounds to whole pairs
// Source of yarn: Peng et al., "YaRN", 2023.
enum class RopeScalingKind : std::uint8_t { llama3, linear, yarn };

struct RopeScaling {
    double factor = 1.0;  // 1: frequencies are not stretched, and the other fields are ignored
    double low_freq_factor = 1.0, high_freq_factor = 4.0;
    std::uint32_t original_context_tokens = 0;
    RopeScalingKind kind = RopeScalingKind::llama3;
    double beta_fast = 32.0, beta_slow = 1.0, attention_factor = 1.0;  // yarn
    bool truncate = true;                                              // yarn
    bool operator==(const RopeScaling&) const = default;
};

// Returns [rotary_size / 2] frequencies in radians per position, rounded to f32 as in the reference
// implementation. At long positions this rounding changes results, so it is part of the model.
// `rotary_size`, the number of a head's elements that are rotated, is even.
std::vector<float> rope_frequencies(std::uint32_t rotary_size, double theta,
                                    const RopeScaling& scaling);
// Returns the factor of all cosines and sines: 1, or the attention_factor of yarn.
float rope_amplitude(const RopeScaling& scaling);

}  // namespace moex
