// Tests that draw_token() and its slow reference draw_token_plain() always return the same token,
// because all sums are whole numbers.
#include "hub/engine/draw.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace moex {
namespace {

// Returns logits of one of several shapes, which test the cuts (top-k, top-p): widely spread, flat,
// peaked, or rounded so that many are equal.
std::vector<std::vector<float>> many_logits() {
    std::mt19937 random(11);
    std::vector<std::vector<float>> all;
    for (const std::size_t size : {1u, 2u, 7u, 255u, 256u, 257u, 700u}) {
        for (const float spread : {0.0f, 0.1f, 3.0f, 30.0f}) {
            std::normal_distribution<float> normal(1.0f, spread + 1e-6f);
            std::vector<float> logits(size);
            for (float& logit : logits) logit = normal(random);
            all.push_back(logits);

            std::vector<float> rounded = logits;
            for (float& logit : rounded) logit = std::round(logit);
            all.push_back(rounded);

            std::vector<float> gaps = logits;
            for (std::size_t i = 0; i < size; i += 3)
                gaps[i] = -std::numeric_limits<float>::infinity();
            all.push_back(gaps);
        }
    }
    return all;
}

std::vector<DrawOptions> many_options() {
    std::vector<DrawOptions> all;
    for (const double temperature : {1e-300, 0.7, 2.0})
        for (const double top_p : {0.0, 0.3, 0.95, 0.999999, 1.0})
            for (const std::uint32_t top_k : {0u, 1u, 20u, 300u})
                for (const double min_p : {0.0, 0.05, 1.0})
                    all.push_back({temperature, top_p, top_k, min_p});
    return all;
}

TEST(DrawTest, TheHistogramKeepsWhatTheSortKeeps) {
    DrawPlace place{.seed = 3, .choice = 1};
    for (const auto& logits : many_logits())
        for (const DrawOptions& options : many_options())
            for (int i = 0; i < 4; ++i, ++place.position)
                ASSERT_EQ(draw_token(logits, options, place),
                          draw_token_plain(logits, options, place))
                    << logits.size() << " tokens, temperature " << options.temperature << ", top_p "
                    << options.top_p << ", top_k " << options.top_k << ", min_p " << options.min_p
                    << ", position " << place.position;
}

TEST(DrawTest, WeightsArePowersOfTwo) {
    EXPECT_EQ(draw_weight(0), std::uint64_t{1} << 39);
    EXPECT_EQ(draw_weight(draw_steps_per_octave), std::uint64_t{1} << 38);
    EXPECT_EQ(draw_weight(draw_steps_max + 1), 0u);

    std::uint64_t before = draw_weight(0);
    for (std::uint32_t steps = 0; steps <= draw_steps_max; steps += 997) {
        const double exact = std::exp2(39.0 - static_cast<double>(steps) / draw_steps_per_octave);
        const std::uint64_t weight = draw_weight(steps);
        ASSERT_NEAR(static_cast<double>(weight), exact, exact * 1e-8 + 1) << steps;
        ASSERT_LE(weight, before);
        before = weight;
    }
}

// The tokens that top-p keeps are those that a computation with probabilities in double keeps,
// except where the share is reached within a rounding error.
TEST(DrawTest, TopPKeepsTheFewestTokensThatReachIt) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    std::vector<float> logits(5000);
    for (float& logit : logits) logit = normal(random);

    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    double sum = 0;
    for (const float logit : sorted) sum += std::exp(double{logit} / 0.7);

    for (const double top_p : {0.1, 0.5, 0.9, 0.99}) {
        double reached = 0;
        std::size_t kept = 0;
        while (reached < (top_p - 1e-6) * sum) reached += std::exp(double{sorted[kept++]} / 0.7);
        const float last = sorted[kept - 1];
        double reached_late = reached;
        while (reached_late < (top_p + 1e-6) * sum)
            reached_late += std::exp(double{sorted[kept++]} / 0.7);

        // The smallest logit among the tokens of 5,000 draws.
        float least = std::numeric_limits<float>::infinity();
        for (std::uint32_t i = 0; i < 5000; ++i)
            least = std::min(least, logits[draw_token(logits, {.temperature = 0.7, .top_p = top_p},
                                                      {.seed = 9, .position = i})]);
        EXPECT_GE(least, sorted[kept - 1]) << top_p;
        if (top_p <= 0.5) {
            EXPECT_LE(least, last + 0.1f) << top_p;
        }
    }
}

TEST(DrawTest, TheLikeliestIsTheFirstOfEquals) {
    for (std::size_t size = 1; size < 70; ++size)
        for (std::size_t at = 0; at < size; ++at) {
            std::vector<float> logits(size, -2.0f);
            for (std::size_t i = at; i < size; i += 5) logits[i] = 3.0f;
            EXPECT_EQ(likeliest_token(logits), at);
        }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(likeliest_token(std::vector<float>(40, nan)), 0u);
    EXPECT_LT(draw_token(std::vector<float>(40, nan), {}, {.seed = 5}), 40u);
    EXPECT_EQ(draw_token(std::vector<float>{nan, 1.0f, nan}, {}, {.seed = 5}), 1u);
}

}  // namespace
}  // namespace moex
