// False answers of workers: rows in an answer of the right shape that are finite, of a plausible
// norm or not, and wrong. The workers of the simulator and the lying worker return the same kinds
// of false answers.
#pragma once

#include <array>
#include <cmath>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace moex {

enum class Lie {
    none,
    // The kinds up to `huge` are visible in the answer itself. Only the simulator's workers return
    // them.
    shape,
    not_finite,
    huge,
    // plausible kinds
    scaled,
    scaled_1_5,
    scaled_10,
    scaled_1000,
    zero,
    negated,
    noise_10,  // noise of 10 per cent of the answer's norm
    noise_100,
    // right arithmetic with another expert's weights; made where experts are computed
    other_expert,
    previous,  // answer to the previous request, if that has the same size
    constant
};
inline constexpr std::array plausible_lies{
    Lie::scaled,   Lie::scaled_1_5, Lie::scaled_10,    Lie::scaled_1000, Lie::zero,    Lie::negated,
    Lie::noise_10, Lie::noise_100,  Lie::other_expert, Lie::previous,    Lie::constant};
inline constexpr std::array<std::string_view, plausible_lies.size()> plausible_lie_names{
    "x1.05",   "x1.5",     "x10",          "x1000",    "zero",    "negated",
    "noise10", "noise100", "other-expert", "previous", "constant"};
inline bool is_plausible(Lie lie) { return lie > Lie::huge; }

// Replaces the honest rows `y` by false rows of the kind `lie`. `previous` holds the honest answer
// to the previous request.
template <class Random>
void tell_lie(Lie lie, std::span<float> y, std::vector<float>& previous, Random& random) {
    const std::vector<float> honest(y.begin(), y.end());
    const auto scale = [&](float factor) {
        for (float& value : y) value *= factor;
    };
    const auto disturb = [&](double share) {
        double sum = 0;
        for (const float value : honest) sum += static_cast<double>(value) * value;
        const double size = share * std::sqrt(3 * sum / static_cast<double>(y.size()));
        for (float& value : y)
            value += static_cast<float>(size *
                                        (2 * (static_cast<double>(random() >> 11) * 0x1p-53) - 1));
    };
    switch (lie) {
        case Lie::scaled: scale(1.05f); break;
        case Lie::scaled_1_5: scale(1.5f); break;
        case Lie::scaled_10: scale(10); break;
        case Lie::scaled_1000: scale(1000); break;
        case Lie::zero: scale(0); break;
        case Lie::negated: scale(-1); break;
        case Lie::noise_10: disturb(0.1); break;
        case Lie::noise_100: disturb(1); break;
        case Lie::constant:
            for (float& value : y) value = 100;
            break;
        case Lie::previous:
            if (previous.size() == y.size()) std::copy(previous.begin(), previous.end(), y.begin());
            break;
        case Lie::none:
        case Lie::shape:
        case Lie::not_finite:
        case Lie::huge:
        case Lie::other_expert: break;  // such rows are made earlier, where experts are computed
    }
    previous = honest;
}

}  // namespace moex
