#include "protocol/hub_codes.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/half.h"
#include "protocol/tensor_format.h"

namespace moex {
namespace {

std::vector<float> random_weights(std::size_t count, float size, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, size);
    std::vector<float> weights(count);
    for (float& weight : weights) weight = normal(random);
    return weights;
}

// Compares codes with the formulas in hub_codes.h, which are computed here with the rounding of the
// C++ library.
TEST(HubCodesTest, GroupsOf8BitsFollowTheirFormula) {
    for (const std::size_t size : {32u, 64u, 128u})
        for (std::uint32_t seed = 0; seed < 200; ++seed) {
            const auto weights = random_weights(size, seed % 2 == 0 ? 0.02f : 3e-5f, seed);
            float largest = 0;
            for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
            std::vector<std::int8_t> codes(size);
            EXPECT_EQ(quantize_int8_group(weights, codes.data()), largest / 127.0f);
            for (std::size_t k = 0; k < size; ++k)
                EXPECT_EQ(codes[k], std::nearbyint(weights[k] * (127.0f / largest)));
        }
}

TEST(HubCodesTest, TiesGoToTheEvenCodeAndZerosStayZeros) {
    std::vector<float> weights(32, 0.0f);
    std::int8_t codes[32];
    EXPECT_EQ(quantize_int8_group(weights, codes), 0.0f);
    for (const std::int8_t code : codes) EXPECT_EQ(code, 0);

    weights[0] = -127.0f;
    for (int k = 1; k < 32; ++k)
        weights[static_cast<std::size_t>(k)] = static_cast<float>(k) - 16.5f;
    EXPECT_EQ(quantize_int8_group(weights, codes), 1.0f);
    EXPECT_EQ(codes[0], -127);
    for (int k = 1; k < 32; ++k) EXPECT_EQ(codes[k] % 2, 0) << k;
}

TEST(HubCodesTest, GroupsOf6BitsFollowTheirFormula) {
    for (const std::size_t size : {32u, 64u, 128u})
        for (std::uint32_t seed = 0; seed < 200; ++seed) {
            const auto weights = random_weights(size, seed % 2 == 0 ? 0.02f : 3e-3f, seed);
            float largest = 0;
            for (const float weight : weights)
                if (std::fabs(weight) > std::fabs(largest)) largest = weight;
            std::vector<std::int8_t> codes(size);
            const half scale = quantize_int6_group(weights, codes.data());
            EXPECT_EQ(scale, float_to_half(-largest / 32));
            const float step = half_to_float(scale);
            for (std::size_t k = 0; k < size; ++k) {
                EXPECT_EQ(codes[k],
                          std::fmin(std::fmax(std::nearbyint(weights[k] / step), -32.0f), 31.0f));
                // The positive side of the codes has only 31 steps, so it loses at most one step.
                // The bound also covers the f16 rounding of the scale.
                EXPECT_NEAR(step * codes[k], weights[k], 1.02f * std::fabs(step)) << seed;
            }
        }

    const std::vector<float> zeros(64, 0.0f);
    std::int8_t codes[64];
    EXPECT_LE(std::fabs(half_to_float(quantize_int6_group(zeros, codes))), 1.1e-5f);
    for (const std::int8_t code : codes) EXPECT_EQ(code, 0);
}

TEST(HubCodesTest, GroupsOf4BitsFollowTheirFormula) {
    for (std::uint32_t seed = 0; seed < 200; ++seed) {
        auto weights = random_weights(hub_int4_group_size, 0.02f, seed);
        if (seed % 3 == 0)
            for (float& weight : weights) weight += 0.5f;  // far from zero
        std::uint32_t words[hub_int4_group_size / 8];
        const std::uint32_t scale_zero = quantize_int4_group(weights, words);
        const float scale = half_to_float(static_cast<half>(scale_zero)),
                    zero = half_to_float(static_cast<half>(scale_zero >> 16));
        float back[hub_int4_group_size];
        dequantize_int4_row(words, &scale_zero, hub_int4_group_size, hub_int4_group_size, back);
        for (std::size_t k = 0; k < weights.size(); ++k) {
            const float code = std::nearbyint(weights[k] / scale + zero);
            EXPECT_EQ(static_cast<float>(words[k / 8] >> 4 * (k % 8) & 15),
                      std::fmin(std::fmax(code, 0.0f), 15.0f));
            // At the ends of the range the clamp of the code adds the rounding error of the zero.
            EXPECT_NEAR(back[k], weights[k], 1.01f * scale) << seed;
        }
    }
}

TEST(HubCodesTest, ARowOf8BitsComesBackWithinHalfAStep) {
    const auto weights = random_weights(3 * 64, 0.1f, 5);
    std::vector<std::int8_t> codes(weights.size());
    std::vector<float> scales, back(weights.size());
    for (std::size_t at = 0; at < weights.size(); at += 64)
        scales.push_back(
            quantize_int8_group(std::span(weights).subspan(at, 64), codes.data() + at));
    dequantize_int8_row(codes.data(), scales.data(), 3 * 64, 64, back.data());
    for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_NEAR(back[i], weights[i], scales[i / 64] * 0.5001f);
}

TEST(HubCodesTest, NamesComeBack) {
    for (const HubDtype dtype : {HubDtype::bf16, HubDtype::int8, HubDtype::int4})
        EXPECT_EQ(*parse_hub_dtype(hub_dtype_name(dtype)), dtype);
    EXPECT_FALSE(parse_hub_dtype("int2").ok());
    EXPECT_FALSE(parse_hub_dtype("").ok());
}

}  // namespace
}  // namespace moex
