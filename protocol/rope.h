// Rotary position embeddings: how fast each pair of a head's elements turns, for the hub's cores
// and for whoever computes attention on a GPU.
// Source: Su et al., "RoFormer", 2021; frequencies stretched for a longer context: transformers,
// rope_type "llama3".
#pragma once

#include <cstdint>
#include <vector>

namespace moex {

// Frequencies that turn fewer than low_freq_factor times within the context that the model was
// first trained on are divided by `factor`, those beyond high_freq_factor stay, and what lies
// between is mixed.
struct RopeScaling {
    double factor = 1.0;  // 1: none, whatever the rest says
    double low_freq_factor = 1.0, high_freq_factor = 4.0;
    std::uint32_t original_context_tokens = 0;
};

// [head_dim / 2] in radians a position, rounded to f32 as the reference does: at long positions the
// rounding is part of the model. `head_dim` is even.
std::vector<float> rope_frequencies(std::uint32_t head_dim, double theta,
                                    const RopeScaling& scaling);

}  // namespace moex
