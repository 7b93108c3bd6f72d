#include "hub/engine/router.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "hub/engine/kernels_plain.h"
#include "hub/engine/rope.h"

namespace moex {
namespace {

TEST(RouterTest, RouterChoosesByProbabilityThenByLowerId) {
    const std::vector<float> logits{0.0f, 2.0f, 1.0f, 2.0f, 1.0f, -3.0f};
    std::vector<std::uint16_t> ids(3);
    std::vector<float> weights(3);
    route(logits, {3, {}}, ids, weights);
    EXPECT_EQ(ids, (std::vector<std::uint16_t>{1, 3, 2}));

    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit);
    EXPECT_NEAR(weights[0], std::exp(2.0) / sum, 1e-6);
    EXPECT_NEAR(weights[2], std::exp(1.0) / sum, 1e-6);

    route(logits, {3, {.is_normalised = true}}, ids, weights);
    EXPECT_NEAR(weights[0] + weights[1] + weights[2], 1.0f, 1e-6);
    EXPECT_NEAR(weights[0] / weights[2], std::exp(1.0), 1e-5);
}

// Returns the plans of the families' routers, and some that no family has.
std::vector<RouterPlan> router_plans() {
    using enum RouterScore;
    return {{},
            {.is_normalised = true},
            {.score = softmax_of_chosen, .has_bias = true},
            {.score = sigmoid, .is_normalised = true},
            {.score = sigmoid, .has_correction_bias = true, .scaling = 2.5},
            {.score = sigmoid,
             .has_correction_bias = true,
             .num_groups = 4,
             .groups_kept = 2,
             .is_normalised = true,
             .scaling = 1.5},
            {.score = sigmoid, .num_groups = 12, .groups_kept = 5, .scaling = 0.5}};
}

TEST(RouterTest, EveryKindOfRouterEqualsItsPlainTwin) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (const RouterPlan& plan : router_plans())
        for (int round = 0; round < 200; ++round) {
            std::vector<float> logits(12), correction(12);
            for (float& logit : logits) logit = 2 * normal(random);
            for (float& bias : correction) bias = 0.3f * normal(random);
            if (!plan.has_correction_bias) correction.clear();
            const RouterOptions options{1 + round % 4u, plan, correction};

            std::vector<std::uint16_t> ids(options.top_k), plain_ids = ids;
            std::vector<float> weights(options.top_k), plain_weights = weights;
            route(logits, options, ids, weights);
            plain::route(logits, options, plain_ids, plain_weights);
            EXPECT_EQ(ids, plain_ids);
            for (std::size_t i = 0; i < weights.size(); ++i)
                EXPECT_NEAR(weights[i], plain_weights[i], 1e-5);
        }
}

// The expert with the largest score wins only if its group is kept; a correction bias chooses, and
// does not weigh.
TEST(RouterTest, GroupsAndCorrectionBiasChooseButDoNotWeigh) {
    const std::vector<float> logits{3, -9, 1, 1, 0, 0, -1, -1}, correction{0, 0, 0, 0, 1, 1, 0, 0};
    const RouterPlan plan{.score = RouterScore::sigmoid,
                          .has_correction_bias = true,
                          .num_groups = 4,
                          .groups_kept = 2};
    std::vector<std::uint16_t> ids(3);
    std::vector<float> weights(3);
    route(logits, {3, plan, correction}, ids, weights);
    EXPECT_EQ(ids, (std::vector<std::uint16_t>{4, 5, 2}));
    EXPECT_FLOAT_EQ(weights[0], 0.5f);
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

TEST(RopeTest, PartOfAHeadIsRotatedAndTheRestStays) {
    const Rope rope(4, 100.0);
    std::vector<float> cos_sin(4), head{1, 2, 3, 4, 5, 6};
    rope.angles(2, cos_sin);
    Rope::rotate(head, cos_sin);
    EXPECT_NEAR(head[0], std::cos(2.0) - 3 * std::sin(2.0), 1e-5);
    EXPECT_NEAR(head[2], 3 * std::cos(2.0) + std::sin(2.0), 1e-5);
    EXPECT_EQ(head[4], 5);
    EXPECT_EQ(head[5], 6);
}

// The parameters of gpt-oss. Pairs that turn often keep their frequency, slow ones are divided by
// the factor, and all cosines and sines are multiplied by 0.1 ln(32) + 1.
TEST(RopeTest, YarnStretchesSlowPairsAndScalesAll) {
    RopeScaling scaling{.factor = 32,
                        .original_context_tokens = 4096,
                        .kind = RopeScalingKind::yarn,
                        .attention_factor = 0.1 * std::log(32.0) + 1,
                        .truncate = false};
    const auto plain = rope_frequencies(64, 150000, {}),
               yarn = rope_frequencies(64, 150000, scaling);
    EXPECT_EQ(yarn[0], plain[0]);
    EXPECT_NEAR(yarn[31] * 32, plain[31], 1e-9);
    // Pairs 8.09 and 17.40 turn 32 times and once within 4096 positions.
    const double ramp = (12 - 8.092779) / (17.398030 - 8.092779);
    EXPECT_NEAR(yarn[12] / plain[12], 1 - ramp + ramp / 32, 1e-5);
    EXPECT_FLOAT_EQ(rope_amplitude(scaling), 1.3465736f);

    scaling.truncate = true;
    EXPECT_NE(rope_frequencies(64, 150000, scaling)[12], yarn[12]);
    scaling = {.factor = 4, .kind = RopeScalingKind::linear};
    EXPECT_FLOAT_EQ(rope_frequencies(64, 150000, scaling)[3], plain[3] / 4);
    EXPECT_EQ(rope_amplitude(scaling), 1);
}

}  // namespace
}  // namespace moex
