#include "protocol/expert_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace moex {
namespace {

ExpertWeights random_expert(ExpertShape shape, unsigned seed, float size = 0.1f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, size);
    ExpertWeights weights{shape, {}, {}, {}};
    for (std::vector<float>* matrix : {&weights.gate, &weights.up, &weights.down}) {
        matrix->resize(std::size_t{shape.hidden_size} * shape.moe_intermediate_size);
        for (float& weight : *matrix) weight = normal(random);
    }
    return weights;
}

// Returns the largest error |a - b| of a weight in units of the group's scale (the range of the
// group divided by 15).
float worst_error_in_scales(const std::vector<float>& a, const std::vector<float>& b,
                            std::uint32_t group_size) {
    float worst = 0;
    for (std::size_t start = 0; start < a.size(); start += group_size) {
        float low = 0, high = 0, error = 0;
        for (std::size_t i = start; i < start + group_size; ++i) {
            low = std::min(low, a[i]);
            high = std::max(high, a[i]);
            error = std::max(error, std::fabs(a[i] - b[i]));
        }
        worst = std::max(worst, error / std::max((high - low) / 15, 0x1p-14f));
    }
    return worst;
}

TEST(ExpertReferenceTest, TinyCaseByHand) {
    // An expert with H = 2 and I = 2. For x = (1, 2), gate·x = (3, -1) and up·x = (2, 4).
    const ExpertWeights weights{{2, 2, 0}, {1, 1, 1, -1}, {2, 0, 0, 2}, {1, 0, 1, 1}};
    const std::vector<double> x{1, 2};
    std::vector<double> intermediate(2), y(2);
    expert_gate_up(intermediate, weights, x);
    const double first = 3 / (1 + std::exp(-3.0)) * 2, second = -1 / (1 + std::exp(1.0)) * 4;
    EXPECT_NEAR(intermediate[0], 5.715444760934593, 1e-12);
    EXPECT_NEAR(intermediate[1], -1.0757656854799804, 1e-12);

    expert_down(y, weights, intermediate);
    EXPECT_DOUBLE_EQ(y[0], first);
    EXPECT_DOUBLE_EQ(y[1], first + second);

    std::vector<double> both(2);
    expert_reference(std::span<double>(both), weights, std::span<const double>(x));
    EXPECT_EQ(both, y);

    const std::vector<float> x_float{1, 2};
    std::vector<float> y_float(2);
    expert_reference(std::span<float>(y_float), weights, std::span<const float>(x_float));
    EXPECT_LT(normalized_rms_error(y_float, y), 1e-6);
}

TEST(ExpertReferenceTest, TokensDoNotTouchEachOther) {
    const ExpertWeights weights = random_expert({64, 32, 32}, 11);
    std::vector<double> x(3 * 64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<double>(i));
    std::vector<double> together(x.size()), alone(64);
    expert_reference(std::span<double>(together), weights, std::span<const double>(x));
    for (std::size_t token = 0; token < 3; ++token) {
        expert_reference(std::span<double>(alone), weights,
                         std::span<const double>(x).subspan(token * 64, 64));
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                               together.begin() + static_cast<std::ptrdiff_t>(token * 64)));
    }
}

TEST(ExpertReferenceTest, ErrorOfEqualAndOfZero) {
    EXPECT_EQ(normalized_rms_error(std::vector<float>{0, 0}, std::vector<double>{0, 0}), 0);
    EXPECT_EQ(normalized_rms_error(std::vector<float>{1, 2}, std::vector<double>{1, 2}), 0);
    EXPECT_TRUE(std::isinf(normalized_rms_error(std::vector<float>{1}, std::vector<double>{0})));
    EXPECT_DOUBLE_EQ(normalized_rms_error(std::vector<float>{3, 5}, std::vector<double>{3, 4}),
                     0.2);
}

TEST(QuantizeTest, BiasesKeepTheirBits) {
    ExpertWeights weights = random_expert({64, 96, 32, true, 7.0f}, 3);
    for (std::size_t i = 0; i < 96; ++i) {
        weights.gate_bias.push_back(0.1f + static_cast<float>(i));
        weights.up_bias.push_back(-0.1f - static_cast<float>(i));
    }
    for (std::size_t i = 0; i < 64; ++i) weights.down_bias.push_back(0.3f * static_cast<float>(i));
    const Bytes blob = quantize_expert(weights);
    const auto view = view_expert_blob(blob, weights.shape, ExpertDtype::int4);
    ASSERT_TRUE(view.ok());
    const ExpertWeights back = dequantize_expert(*view);
    EXPECT_EQ(back.gate_bias, weights.gate_bias);
    EXPECT_EQ(back.up_bias, weights.up_bias);
    EXPECT_EQ(back.down_bias, weights.down_bias);
}

TEST(QuantizeTest, EveryGroupSizeStaysWithinHalfAStep) {
    for (const ExpertShape shape :
         {ExpertShape{384, 256, 128}, ExpertShape{128, 192, 64}, ExpertShape{96, 160, 32}}) {
        const ExpertWeights weights = random_expert(shape, shape.hidden_size);
        const Bytes blob = quantize_expert(weights);
        const auto view = view_expert_blob(blob, shape, ExpertDtype::int4);
        ASSERT_TRUE(view.ok());
        const ExpertWeights back = dequantize_expert(*view);
        // The bound for the error is half a step between codes, plus the f16 rounding of scale and
        // zero and the clamp at the ends.
        EXPECT_LE(worst_error_in_scales(weights.gate, back.gate, shape.group_size), 0.53f);
        EXPECT_LE(worst_error_in_scales(weights.up, back.up, shape.group_size), 0.53f);
        EXPECT_LE(worst_error_in_scales(weights.down, back.down, shape.group_size), 0.53f);
    }
}

TEST(QuantizeTest, ZeroConstantTinyAndOneSidedGroupsKeepTheirValues) {
    const ExpertShape shape{32, 32, 32};
    ExpertWeights weights{shape, std::vector<float>(1024), std::vector<float>(1024),
                          std::vector<float>(1024, 5.0f)};
    for (std::size_t i = 0; i < 1024; ++i) {
        weights.gate[i] = i < 512 ? 0.0f : -3.0f;
        weights.up[i] = i < 512 ? 1e-7f : 100.0f + static_cast<float>(i % 32);
    }
    const Bytes blob = quantize_expert(weights);
    const ExpertWeights back = dequantize_expert(*view_expert_blob(blob, shape, ExpertDtype::int4));

    for (std::size_t i = 0; i < 1024; ++i) {
        EXPECT_NEAR(back.gate[i], weights.gate[i], 0.003f);
        EXPECT_NEAR(back.down[i], 5.0f, 0.005f);
        EXPECT_NEAR(back.up[i], weights.up[i], i < 512 ? 1e-6f : 131.0f / 15 / 2 * 1.01f);
    }
}

TEST(QuantizeTest, Mxfp4ChoosesTheNearestValue) {
    ExpertShape shape{64, 32, mxfp4_block};
    shape.codes = ExpertDtype::mxfp4;
    const ExpertWeights weights = random_expert(shape, 3, 0.1f);
    const Bytes blob = quantize_expert(weights);
    const ExpertWeights back = dequantize_expert(*view_expert_blob(blob, shape, shape.codes));
    // Neighbouring values differ by a third of the larger one at most.
    for (std::size_t block = 0; block < weights.gate.size(); block += 32) {
        float largest = 0;
        for (std::size_t i = block; i < block + 32; ++i)
            largest = std::max(largest, std::abs(weights.gate[i]));
        for (std::size_t i = block; i < block + 32; ++i)
            EXPECT_LE(std::abs(back.gate[i] - weights.gate[i]), largest / 3) << i;
    }
    // What is in MXFP4 already stays as it is.
    EXPECT_EQ(dequantize_expert(*view_expert_blob(quantize_expert(back), shape, shape.codes)).up,
              back.up);
}

TEST(QuantizeTest, ScalesAreNormalHalves) {
    const ExpertShape shape{64, 64, 32};
    const Bytes blob = quantize_expert(random_expert(shape, 3, 1e-6f));
    const ExpertBlobLayout layout = expert_blob_layout(shape);
    for (const BlobSection& section : {layout.gate_up_scale_zero, layout.down_scale_zero}) {
        ByteReader in(ByteView(blob).subspan(section.offset_bytes, section.size_bytes));
        while (in.remaining_bytes() != 0) {
            EXPECT_GE(half_to_float(in.u16()), 0x1p-14f);
            EXPECT_LT(half_to_float(in.u16()), 15.1f);
        }
    }
}

TEST(QuantizeTest, WideBlobsAreExact) {
    const ExpertShape shape{96, 32, 0};
    const ExpertWeights weights = random_expert(shape, 5);
    for (const ExpertDtype dtype : {ExpertDtype::f32, ExpertDtype::bf16}) {
        const Dtype row_dtype = dtype == ExpertDtype::f32 ? Dtype::f32 : Dtype::bf16;
        ExpertWeights wanted = weights;
        const ExpertBlobLayout layout = expert_blob_layout(shape, dtype);
        Bytes blob(layout.size_bytes);
        const auto put = [&](std::vector<float>& matrix, std::uint64_t offset_bytes) {
            round_rows(row_dtype, matrix, 32);
            encode_rows(row_dtype, matrix, 32,
                        std::span(blob).subspan(offset_bytes,
                                                wire_rows_bytes(row_dtype, 1, matrix.size())));
        };
        put(wanted.gate, 0);
        put(wanted.up, layout.gate_up_codes.size_bytes / 2);
        put(wanted.down, layout.down_codes.offset_bytes);
        const ExpertWeights back = dequantize_expert(*view_expert_blob(blob, shape, dtype));
        EXPECT_EQ(back.gate, wanted.gate);
        EXPECT_EQ(back.up, wanted.up);
        EXPECT_EQ(back.down, wanted.down);
    }
}

}  // namespace
}  // namespace moex
