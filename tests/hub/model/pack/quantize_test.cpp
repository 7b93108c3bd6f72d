#include "hub/model/pack/quantize.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/tensor_format.h"

namespace moex {
namespace {

double squared_error(const std::vector<float>& row, std::uint32_t group_size,
                     std::vector<float>* back = nullptr) {
    std::vector<std::uint32_t> codes(row.size() / 8), scale_zero(row.size() / group_size);
    EXPECT_TRUE(quantize_int4_row(row, group_size, codes.data(), scale_zero.data()));
    for (const std::uint32_t word : scale_zero)
        EXPECT_GE(half_to_float(static_cast<half>(word)), int4_scale_min);
    std::vector<float> out(row.size());
    dequantize_int4_row(codes.data(), scale_zero.data(), static_cast<std::uint32_t>(row.size()),
                        group_size, out.data());

    double error = 0;
    for (std::size_t i = 0; i < row.size(); ++i) error += std::pow(double{out[i]} - row[i], 2);
    if (back != nullptr) *back = out;
    return error;
}

// The error of a weight is at most half a step of the stored scale, plus the f16 rounding of scale
// and zero.
TEST(QuantizeTest, RandomRowsAreOffByHalfAStepAtMost) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        std::mt19937_64 random(seed);
        std::normal_distribution<float> normal(0.001f * static_cast<float>(seed), 0.02f);
        std::vector<float> row(512), back;
        for (float& value : row) value = normal(random);

        for (const std::uint32_t group_size : {32u, 64u, 128u}) {
            squared_error(row, group_size, &back);
            for (std::size_t begin = 0; begin < row.size(); begin += group_size) {
                const auto [low, high] = std::minmax_element(row.begin() + begin,
                                                             row.begin() + begin + group_size);
                const float step = (*high - *low) / 15;
                for (std::size_t i = begin; i < begin + group_size; ++i)
                    EXPECT_NEAR(back[i], row[i], 0.52f * step)
                        << "seed " << seed << " group " << group_size;
            }
        }
    }
}

TEST(QuantizeTest, ErrorIsAtMostHalfAStep) {
    std::vector<float> row(128);
    for (int i = 0; i < 128; ++i) row[i] = static_cast<float>(i) / 127.0f - 0.3f, row[i] *= 0.15f;
    std::vector<float> back;
    squared_error(row, 128, &back);
    for (int i = 0; i < 128; ++i) EXPECT_NEAR(back[i], row[i], 0.51 * 0.15 / 15) << i;
}

TEST(QuantizeTest, WeightsOnAnIntegerGridComeBackExactly) {
    std::vector<float> row(128), back;
    for (int i = 0; i < 128; ++i) row[i] = 0.0078125f * static_cast<float>((i * 7) % 16 - 8);
    EXPECT_EQ(squared_error(row, 32, &back), 0.0);
    EXPECT_EQ(back, row);
}

TEST(QuantizeTest, OddGroupsKeepTheirMeaning) {
    std::vector<float> back;
    EXPECT_EQ(squared_error(std::vector<float>(128, 0.0f), 128, &back), 0.0);

    // All weights of the row are equal, so only the f16 rounding of the scale changes them.
    squared_error(std::vector<float>(64, 0.7f), 64, &back);
    EXPECT_NEAR(back[0], 0.7f, 0.7f * 0x1p-10f);
    squared_error(std::vector<float>(64, -3.0f), 64, &back);
    EXPECT_NEAR(back[0], -3.0f, 3.0f * 0x1p-8f);

    // All weights are far below the smallest scale, so they must become zero.
    squared_error(std::vector<float>(32, 1e-9f), 32, &back);
    EXPECT_NEAR(back[0], 0.0f, 0x1p-14f);
}

TEST(QuantizeTest, WeightsTooLargeForAScaleAreRefused) {
    std::vector<float> row(32, 0.0f);
    std::uint32_t codes[4], scale_zero[1];
    row[5] = 900'000.0f;
    EXPECT_TRUE(quantize_int4_row(row, 32, codes, scale_zero));

    for (const float large : {1.1e6f, 3e38f}) {
        row[5] = large;
        row[6] = -large;  // the range of the weights needs a scale beyond f16
        EXPECT_FALSE(quantize_int4_row(row, 32, codes, scale_zero)) << large;
    }
}

}  // namespace
}  // namespace moex
