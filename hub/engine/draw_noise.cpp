#include "hub/engine/draw_noise.h"

#include <bit>

namespace moex {
namespace {

std::uint64_t splitmix64(std::uint64_t& state) {
    std::uint64_t z = (state += 0x9e37'79b9'7f4a'7c15);
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
    return z ^ (z >> 31);
}

}  // namespace

DrawNoise::DrawNoise(const DrawPlace& place) {
    std::uint64_t state = place.seed;
    state = splitmix64(state) ^ (std::uint64_t{place.choice} << 32 | place.position);
    for (int i = 0; i < 4; i += 2) {
        const std::uint64_t word = splitmix64(state);
        key_[i] = static_cast<std::uint32_t>(word);
        key_[i + 1] = static_cast<std::uint32_t>(word >> 32);
    }
}

// The bits of log2 of a number in [1, 2) are found one by one: squaring doubles the logarithm, and
// a square of 2 or more sets the next bit.
std::uint64_t exponential_time(std::uint64_t noise) {
    if (noise == 0) return 1;
    constexpr int fraction_bits = 57;
    const std::uint64_t rest = 0 - noise;  // 2^64 - noise
    const int zeros = std::countl_zero(rest);

    __extension__ using Wide = unsigned __int128;
    // 2^64 - noise as a number in [1, 2), in units of 2^-63
    std::uint64_t mantissa = rest << zeros;
    std::uint64_t fraction = 0;
    for (int bit = fraction_bits - 1; bit >= 0; --bit) {
        const Wide square = Wide{mantissa} * mantissa;
        const bool is_two_or_more = static_cast<std::uint64_t>(square >> 64) >> 63 != 0;
        fraction |= std::uint64_t{is_two_or_more} << bit;
        mantissa = static_cast<std::uint64_t>(square >> (is_two_or_more ? 64 : 63));
    }
    return (static_cast<std::uint64_t>(zeros + 1) << fraction_bits) - fraction;
}

}  // namespace moex
