#include "hub/engine/rope.h"

#include <cmath>

#include "protocol/check.h"

namespace moex {

Rope::Rope(std::uint32_t head_dim, double theta) : inverse_frequency_(head_dim / 2) {
    MOEX_CHECK(head_dim % 2 == 0, "an odd head_dim has no halves");
    // Rounded to f32 as the reference does: at long positions the rounding is part of the model.
    for (std::size_t i = 0; i < inverse_frequency_.size(); ++i)
        inverse_frequency_[i] = 1.0f / static_cast<float>(std::pow(
                                           theta, 2.0 * static_cast<double>(i) / head_dim));
}

void Rope::angles(std::uint32_t position, std::span<float> cos_sin) const {
    const std::size_t half_size = inverse_frequency_.size();
    for (std::size_t i = 0; i < half_size; ++i) {
        const float angle = static_cast<float>(position) * inverse_frequency_[i];
        cos_sin[i] = std::cos(angle);
        cos_sin[half_size + i] = std::sin(angle);
    }
}

void Rope::rotate(std::span<float> head, std::span<const float> cos_sin) {
    const std::size_t half_size = head.size() / 2;
    for (std::size_t i = 0; i < half_size; ++i) {
        const float a = head[i], b = head[half_size + i], cosine = cos_sin[i],
                    sine = cos_sin[half_size + i];
        head[i] = a * cosine - b * sine;
        head[half_size + i] = b * cosine + a * sine;
    }
}

}  // namespace moex
