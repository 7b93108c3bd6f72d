#include "hub/model/pack/calibrated_quantizer.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "hub/model/pack/quantize.h"
#include "protocol/tensor_format.h"

namespace moex {
namespace {

constexpr std::uint32_t size = 96, group = 32, num_rows = 13;

// Inputs that are correlated, as a model's are: mixtures of few directions, and some noise.
std::vector<float> inputs(std::size_t count, std::uint32_t seed) {
    std::mt19937 random(7), own(seed);
    std::normal_distribution<float> normal;
    constexpr std::size_t directions = 12;
    std::vector<float> mix(directions * size), x(count * size);
    for (float& value : mix) value = normal(random);
    for (std::size_t r = 0; r < count; ++r) {
        for (std::size_t d = 0; d < directions; ++d) {
            const float share = normal(own);
            for (std::size_t i = 0; i < size; ++i) x[r * size + i] += share * mix[d * size + i];
        }
        for (std::size_t i = 0; i < size; ++i) x[r * size + i] += 0.3f * normal(own);
    }
    return x;
}

std::vector<float> weights(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> w(num_rows * size);
    for (float& value : w) value = 0.05f * normal(random);
    return w;
}

struct Codes {
    std::vector<std::uint32_t> codes = std::vector<std::uint32_t>(num_rows * size / 8);
    std::vector<std::uint32_t> scale_zero = std::vector<std::uint32_t>(num_rows * size / group);
    std::vector<float> values() const {
        std::vector<float> out(num_rows * size);
        for (std::size_t row = 0; row < num_rows; ++row)
            dequantize_int4_row(codes.data() + row * size / 8,
                                scale_zero.data() + row * size / group, size, group,
                                out.data() + row * size);
        return out;
    }
};

Codes rounded(std::span<const float> w) {
    Codes out;
    for (std::size_t row = 0; row < num_rows; ++row)
        EXPECT_TRUE(quantize_int4_row(w.subspan(row * size, size), group,
                                      out.codes.data() + row * size / 8,
                                      out.scale_zero.data() + row * size / group));
    return out;
}

// Sum of the squares of w · x − v · y over all rows of x and y.
double output_error(std::span<const float> w, std::span<const float> x, std::span<const float> v,
                    std::span<const float> y) {
    double sum = 0;
    for (std::size_t r = 0; r < x.size() / size; ++r)
        for (std::size_t row = 0; row < num_rows; ++row) {
            double off = 0;
            for (std::size_t i = 0; i < size; ++i)
                off += double{w[row * size + i]} * x[r * size + i] -
                       double{v[row * size + i]} * y[r * size + i];
            sum += off * off;
        }
    return sum;
}

TEST(InputMomentsTest, SumsAreThoseOfPlainLoops) {
    const std::vector<float> x = inputs(21, 1);
    std::vector<float> factors(21);
    for (std::size_t r = 0; r < factors.size(); ++r) factors[r] = 0.1f * static_cast<float>(r);
    InputMoments moments(size);
    moments.add(x, factors);

    for (std::size_t i = 0; i < size; ++i)
        for (std::size_t j = 0; j <= i; ++j) {
            double product = 0, scale = 0;
            for (std::size_t r = 0; r < factors.size(); ++r) {
                const double one = double{factors[r]} * factors[r] * x[r * size + i] *
                                   x[r * size + j];
                product += one;
                scale += std::abs(one);
            }
            EXPECT_NEAR(moments.products()[i * size + j], product, 1e-5 * scale);
        }
    EXPECT_LT(moments.effective_rows(), 21);
    EXPECT_GT(moments.effective_rows(), 8);
}

// The tiles sum in the order of the plain loops, for whole tiles and for what is left of them.
TEST(InputMomentsTest, ProductsHaveTheBitsOfPlainLoops) {
    for (const std::size_t wide : {16u, 41u, 96u})
        for (const std::size_t rows_read : {1u, 8u, 19u}) {
            const std::vector<float> x = inputs(40, 2),
                                     rows(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(
                                                                     rows_read * wide));
            std::vector<float> matrix = inputs(wide * wide / size + 1, 3), out(rows.size(), 7.0f);
            matrix.resize(wide * wide);
            multiply_by_moments(out, rows, matrix, wide);
            for (std::size_t r = 0; r < rows_read; ++r)
                for (std::size_t i = 0; i < wide; ++i) {
                    float sum = 0;
                    for (std::size_t j = 0; j < wide; ++j)
                        sum += rows[r * wide + j] * matrix[j * wide + i];
                    ASSERT_EQ(out[r * wide + i], sum) << wide << ' ' << rows_read;
                }
        }
}

TEST(CalibratedQuantizerTest, OutputsChangeLessThanByRounding) {
    const std::vector<float> w = weights(3), x = inputs(400, 4), other = inputs(400, 5);
    InputMoments moments(size);
    moments.add(x, std::vector<float>(400, 1.0f));
    const CalibratedQuantizer quantizer(moments, {});
    Codes out;
    CalibratedError error;
    ASSERT_TRUE(quantizer.quantize(w, group, out.codes.data(), out.scale_zero.data(), error));

    // Rows that were not used for the calibration gain as well.
    const double before = output_error(w, other, rounded(w).values(), other),
                 after = output_error(w, other, out.values(), other);
    EXPECT_LT(after, 0.25 * before);
    EXPECT_NEAR(error.output_rounding / output_error(w, x, rounded(w).values(), x), 1.0, 0.2);
    EXPECT_GT(error.calibrated, error.rounding);  // single weights are further off
}

// With a unit matrix of moments no error can be undone by another, so only scales can gain.
TEST(CalibratedQuantizerTest, IndependentInputsNeverLose) {
    const std::vector<float> w = weights(6);
    std::vector<float> x(size * size);
    for (std::size_t i = 0; i < size; ++i) x[i * size + i] = 1.0f;
    InputMoments moments(size);
    moments.add(x, std::vector<float>(size, 1.0f));
    Codes out;
    CalibratedError error;
    ASSERT_TRUE(CalibratedQuantizer(moments, {})
                    .quantize(w, group, out.codes.data(), out.scale_zero.data(), error));
    EXPECT_LT(error.calibrated, error.rounding);
    EXPECT_GT(error.calibrated, 0.5 * error.rounding);
}

// A text of few rows does not know the inputs of other texts, so the quantiser stays near plain
// rounding.
TEST(CalibratedQuantizerTest, FewRowsDoNotHarmOtherTexts) {
    const std::vector<float> w = weights(8), other = inputs(400, 9);
    const double before = output_error(w, other, rounded(w).values(), other);
    double last = 1.1 * before;
    for (const std::size_t num_rows_read : {2u, 24u, 400u}) {
        const std::vector<float> x = inputs(num_rows_read, 10);
        InputMoments moments(size);
        moments.add(x, std::vector<float>(num_rows_read, 1.0f));
        Codes out;
        CalibratedError error;
        ASSERT_TRUE(CalibratedQuantizer(moments, {})
                        .quantize(w, group, out.codes.data(), out.scale_zero.data(), error));
        const double after = output_error(w, other, out.values(), other);
        EXPECT_LT(after, last) << num_rows_read;
        last = after;
    }
}

TEST(CalibratedQuantizerTest, RowsDoNotDependOnTheirNeighbours) {
    const std::vector<float> w = weights(10), x = inputs(300, 11);
    InputMoments moments(size);
    moments.add(x, std::vector<float>(300, 1.0f));
    const CalibratedQuantizer quantizer(moments, {});
    Codes all, alone;
    CalibratedError error;
    ASSERT_TRUE(quantizer.quantize(w, group, all.codes.data(), all.scale_zero.data(), error));
    for (std::size_t row = 0; row < num_rows; ++row)
        ASSERT_TRUE(quantizer.quantize(std::span(w).subspan(row * size, size), group,
                                       alone.codes.data() + row * size / 8,
                                       alone.scale_zero.data() + row * size / group, error));
    EXPECT_EQ(all.codes, alone.codes);
    EXPECT_EQ(all.scale_zero, alone.scale_zero);
}

TEST(CalibratedQuantizerTest, ZeroRowsStayZeroAndHugeWeightsAreRefused) {
    const std::vector<float> x = inputs(50, 12);
    InputMoments moments(size);
    moments.add(x, std::vector<float>(50, 1.0f));
    const CalibratedQuantizer quantizer(moments, {});
    Codes out;
    CalibratedError error;
    std::vector<float> w(num_rows * size);
    ASSERT_TRUE(quantizer.quantize(w, group, out.codes.data(), out.scale_zero.data(), error));
    EXPECT_EQ(out.values(), w);

    w[17] = 3e6f;
    EXPECT_FALSE(quantizer.quantize(w, group, out.codes.data(), out.scale_zero.data(), error));
}

}  // namespace
}  // namespace moex
