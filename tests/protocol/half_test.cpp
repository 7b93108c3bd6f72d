#include "protocol/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace moex {
namespace {

half compiler_half(float value) {
    const _Float16 rounded = static_cast<_Float16>(value);
    half bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    return bits;
}

bool is_nan_half(half h) { return (h & 0x7fffu) > 0x7c00u; }

void expect_same_half(std::uint32_t bits) {
    const float value = detail::float_of_bits(bits);
    if (std::isnan(value)) {
        ASSERT_TRUE(is_nan_half(float_to_half(value))) << std::hex << bits;
        ASSERT_EQ(float_to_half(value) & 0x8000u, (bits >> 16) & 0x8000u);
        return;
    }
    ASSERT_EQ(float_to_half(value), compiler_half(value)) << std::hex << bits;
}

TEST(HalfTest, EveryHalfComesBackFromFloat) {
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
        const half h = static_cast<half>(bits);
        _Float16 wanted;
        std::memcpy(&wanted, &h, sizeof wanted);
        const float value = half_to_float(h);
        if (is_nan_half(h)) {
            ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
            ASSERT_TRUE(is_nan_half(float_to_half(value))) << std::hex << bits;
            continue;
        }
        ASSERT_EQ(detail::bits_of_float(value), detail::bits_of_float(static_cast<float>(wanted)))
            << std::hex << bits;
        ASSERT_EQ(float_to_half(value), h) << std::hex << bits;
    }
}

TEST(HalfTest, RoundsAsTheCompilerDoesAroundEveryHalf) {
    for (std::uint32_t h = 0; h < 0x7c00; ++h) {
        const std::uint32_t low = detail::bits_of_float(half_to_float(static_cast<half>(h)));
        const std::uint32_t high = detail::bits_of_float(
            h == 0x7bff ? 65536.0f : half_to_float(static_cast<half>(h + 1)));
        const std::uint32_t middle = detail::bits_of_float(
            (detail::float_of_bits(low) + detail::float_of_bits(high)) / 2);
        for (const std::uint32_t bits : {low, low + 1, middle - 1, middle, middle + 1, high - 1})
            for (const std::uint32_t sign : {0u, 0x80000000u}) expect_same_half(bits | sign);
    }
}

TEST(HalfTest, RoundsAsTheCompilerDoesOverAllFloats) {
    for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 1021)
        expect_same_half(static_cast<std::uint32_t>(bits));
    for (const std::uint32_t bits :
         {0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fffffffu, 0x477fefffu, 0x477ff000u, 0x477fffffu,
          0x00000001u, 0x33000000u, 0x33000001u, 0x387fffffu, 0x38800000u})
        expect_same_half(bits);
}

TEST(HalfTest, EveryBfloatComesBackAndTiesGoToEven) {
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
        const float value = bfloat16_to_float(static_cast<bfloat16>(bits));
        if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(value))));
            continue;
        }
        ASSERT_EQ(float_to_bfloat16(value), bits);
    }
    EXPECT_EQ(float_to_bfloat16(detail::float_of_bits(0x3f808000u)), 0x3f80u);
    EXPECT_EQ(float_to_bfloat16(detail::float_of_bits(0x3f818000u)), 0x3f82u);
    EXPECT_EQ(float_to_bfloat16(detail::float_of_bits(0x3f808001u)), 0x3f81u);
    EXPECT_EQ(float_to_bfloat16(detail::float_of_bits(0x7f7fffffu)), 0x7f80u);
    EXPECT_TRUE(
        std::isnan(bfloat16_to_float(float_to_bfloat16(detail::float_of_bits(0x7f800001u)))));
}

}  // namespace
}  // namespace moex
