#include "protocol/rope.h"

#include <algorithm>
#include <cmath>

#include "protocol/check.h"

namespace moex {
namespace {

// Returns the frequency after the llama3 scaling. All steps are in f32, as in the reference
// implementation.
float scaled_llama3(float frequency, const RopeScaling& scaling) {
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

// The pairs between which yarn interpolates.
struct YarnRange {
    double low = 0, high = 0;
};
YarnRange yarn_range(std::uint32_t rotary_size, double theta, const RopeScaling& scaling) {
    constexpr double turn = 6.28318530717958647692;
    // the pair that turns `rotations` times within the context of the first training
    const auto pair_of = [&](double rotations) {
        return rotary_size * std::log(scaling.original_context_tokens / (rotations * turn)) /
               (2 * std::log(theta));
    };
    YarnRange range{pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)};
    if (scaling.truncate) range = {std::floor(range.low), std::ceil(range.high)};
    range.low = std::max(range.low, 0.0);
    range.high = std::min(range.high, rotary_size - 1.0);
    if (range.low == range.high) range.high += 0.001;
    return range;
}

float scaled_yarn(float frequency, std::size_t pair, const YarnRange& range, double factor) {
    const auto ramp = static_cast<float>(
        std::clamp((static_cast<double>(pair) - range.low) / (range.high - range.low), 0.0, 1.0));
    return frequency / static_cast<float>(factor) * ramp + frequency * (1.0f - ramp);
}

}  // namespace

std::vector<float> rope_frequencies(std::uint32_t rotary_size, double theta,
                                    const RopeScaling& scaling) {
    MOEX_CHECK(rotary_size % 2 == 0, "an odd number of elements has no halves");
    const bool is_yarn = scaling.factor != 1.0 && scaling.kind == RopeScalingKind::yarn;
    const YarnRange range = is_yarn ? yarn_range(rotary_size, theta, scaling) : YarnRange{};

    std::vector<float> frequencies(rotary_size / 2);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double power = std::pow(theta, 2.0 * static_cast<double>(i) / rotary_size);
        frequencies[i] = 1.0f / static_cast<float>(power);
        if (scaling.factor == 1.0) continue;
        switch (scaling.kind) {
            case RopeScalingKind::llama3:
                frequencies[i] = scaled_llama3(frequencies[i], scaling);
                break;
            case RopeScalingKind::linear:
                frequencies[i] /= static_cast<float>(scaling.factor);
                break;
            case RopeScalingKind::yarn:
                frequencies[i] = scaled_yarn(frequencies[i], i, range, scaling.factor);
                break;
        }
    }
    return frequencies;
}

float rope_amplitude(const RopeScaling& scaling) {
    const bool is_yarn = scaling.factor != 1.0 && scaling.kind == RopeScalingKind::yarn;
    return is_yarn ? static_cast<float>(scaling.attention_factor) : 1.0f;
}

}  // namespace moex
