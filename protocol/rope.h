// Rotary position embeddings: the rotation frequency of each pair of elements of a head. The hub's
// attention on CPU cores and the attention on a GPU both use it.
// Source: Su et al., "RoFormer", 2021; frequencies stretched for a longer context: transformers,
// rope_type "llama3".
#pragma once

#include <cstdint>
#include <vector>

namespace moex {

// Parameters that stretch the frequencies. The stretch depends on the number of rotations within
// the context length of the first training. A frequency with fewer than low_freq_factor rotations
// is divided by `factor`, one with more than high_freq_factor stays unchanged, and one between is
// interpolated.
struct RopeScaling {
    double factor = 1.0;  // 1: frequencies are not stretched, and the other fields are ignored
    double low_freq_factor = 1.0, high_freq_factor = 4.0;
    std::uint32_t original_context_tokens = 0;
};

// Returns [head_dim / 2] frequencies in radians per position, rounded to f32 as in the reference
// implementation. At long positions this rounding changes results, so it is part of the model.
// `head_dim` is even.
std::vector<float> rope_frequencies(std::uint32_t head_dim, double theta,
                                    const RopeScaling& scaling);

}  // namespace moex
