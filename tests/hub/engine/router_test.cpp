#include "hub/engine/router.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "hub/engine/rope.h"

namespace moex {
namespace {

TEST(RouterTest, RouterChoosesByProbabilityThenByLowerId) {
    const std::vector<float> logits{0.0f, 2.0f, 1.0f, 2.0f, 1.0f, -3.0f};
    std::vector<std::uint16_t> ids(3);
    std::vector<float> weights(3);
    route(logits, {3, false}, ids, weights);
    EXPECT_EQ(ids, (std::vector<std::uint16_t>{1, 3, 2}));

    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit);
    EXPECT_NEAR(weights[0], std::exp(2.0) / sum, 1e-6);
    EXPECT_NEAR(weights[2], std::exp(1.0) / sum, 1e-6);

    route(logits, {3, true}, ids, weights);
    EXPECT_NEAR(weights[0] + weights[1] + weights[2], 1.0f, 1e-6);
    EXPECT_NEAR(weights[0] / weights[2], std::exp(1.0), 1e-5);
}

TEST(RopeTest, RopeRotatesThePairsOfBothHalves) {
    const Rope rope(6, 100.0);
    std::vector<float> cos_sin(6), head{1, 2, 3, 4, 5, 6};
    rope.angles(7, cos_sin);
    Rope::rotate(head, cos_sin);
    for (int i = 0; i < 3; ++i) {
        const double angle = 7.0 / std::pow(100.0, 2.0 * i / 6);
        EXPECT_NEAR(head[i], (1 + i) * std::cos(angle) - (4 + i) * std::sin(angle), 1e-5);
        EXPECT_NEAR(head[3 + i], (4 + i) * std::cos(angle) + (1 + i) * std::sin(angle), 1e-5);
    }
}

}  // namespace
}  // namespace moex
