#include "protocol/rope.h"

#include <cmath>

#include "protocol/check.h"

namespace moex {
namespace {

// Returns the rotation frequency after it was stretched for a longer context. All steps are in f32,
// as in the reference implementation.
float scaled(float frequency, const RopeScaling& scaling) {
    constexpr float turn = 6.28318530717958647692f;
    const auto factor = static_cast<float>(scaling.factor),
               low = static_cast<float>(scaling.low_freq_factor),
               high = static_cast<float>(scaling.high_freq_factor),
               context = static_cast<float>(scaling.original_context_tokens);
    const float wavelength = turn / frequency;
    if (wavelength < context / high) return frequency;
    if (wavelength > context / low) return frequency / factor;

    const float share = (context / wavelength - low) / (high - low);
    return (1.0f - share) * frequency / factor + share * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(std::uint32_t head_dim, double theta,
                                    const RopeScaling& scaling) {
    MOEX_CHECK(head_dim % 2 == 0, "an odd head_dim has no halves");
    std::vector<float> frequencies(head_dim / 2);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double power = std::pow(theta, 2.0 * static_cast<double>(i) / head_dim);
        frequencies[i] = 1.0f / static_cast<float>(power);
        if (scaling.factor != 1.0) frequencies[i] = scaled(frequencies[i], scaling);
    }
    return frequencies;
}

}  // namespace moex
