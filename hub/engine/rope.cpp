#include "hub/engine/rope.h"

#include <cmath>

namespace moex {

Rope::Rope(std::uint32_t rotary_size, double theta, const RopeScaling& scaling)
    : inverse_frequency_(rope_frequencies(rotary_size, theta, scaling)),
      amplitude_(rope_amplitude(scaling)) {}

void Rope::angles(std::uint32_t position, std::span<float> cos_sin) const {
    const std::size_t half_size = inverse_frequency_.size();
    for (std::size_t i = 0; i < half_size; ++i) {
        const float angle = static_cast<float>(position) * inverse_frequency_[i];
        cos_sin[i] = std::cos(angle) * amplitude_;
        cos_sin[half_size + i] = std::sin(angle) * amplitude_;
    }
}

void Rope::rotate(std::span<float> head, std::span<const float> cos_sin) {
    const std::size_t half_size = cos_sin.size() / 2;
    for (std::size_t i = 0; i < half_size; ++i) {
        const float a = head[i], b = head[half_size + i], cosine = cos_sin[i],
                    sine = cos_sin[half_size + i];
        head[i] = a * cosine - b * sine;
        head[half_size + i] = b * cosine + a * sine;
    }
}

}  // namespace moex
