// Compares the estimator's gradients with numerical differences and its optimiser with steps
// computed by hand, and checks that training is reproducible.
#include "hub/foresight/predict/estimator.h"

#include <cmath>

#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/random.h"
#include "hub/foresight/predict/training.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

constexpr EstimatorShape small_shape{
    .hidden_size = 6, .num_experts = 3, .num_targets = 2, .width = 5, .inner = 4};

// Each gradient is compared with the change of sum(logits · factors) for a small parameter change.
TEST(EstimatorTest, GradientsAreTheDifferencesThatSmallChangesMake) {
    Estimator estimator(small_shape, 3);
    SplitMix64 random(11);
    for (float& value : estimator.parameters()) value += 0.6f * (random.unit() - 0.5f);
    const auto x = test::random_floats(7 * small_shape.hidden_size, 5),
               factors = test::random_floats(7 * small_shape.num_experts, 6);
    const Estimator::Block blocks[] = {{.target = 1, .first_row = 0, .num_rows = 3},
                                       {.target = 0, .first_row = 3, .num_rows = 4}};
    Estimator::Pass pass;
    const auto loss = [&] {
        estimator.forward(pass, x, blocks, test::compute_threads());
        double sum = 0;
        for (std::size_t i = 0; i < factors.size(); ++i) sum += double{pass.logits[i]} * factors[i];
        return sum;
    };

    loss();
    std::vector<float> gradient(estimator.parameters().size());
    estimator.backward(gradient, pass, x, factors, blocks, test::compute_threads());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        const float before = estimator.parameters()[i], step = 4e-3f;
        estimator.parameters()[i] = before + step;
        const double above = loss();
        estimator.parameters()[i] = before - step;
        const double below = loss();
        estimator.parameters()[i] = before;
        EXPECT_NEAR(gradient[i], (above - below) / (2.0 * step),
                    2e-3 + 1e-2 * std::fabs(gradient[i]))
            << "parameter " << i;
    }
}

TEST(EstimatorTest, FirstStepsOfAdamAreThoseByHand) {
    Adam adam(1, {.rate = 0.1, .beta1 = 0.5, .beta2 = 0.75, .eps = 0});
    std::vector<float> parameter{1};
    // the first step of Adam has the size of the learning rate
    adam.step(parameter, std::vector<float>{3}, 1);
    EXPECT_NEAR(parameter[0], 0.9, 1e-6);

    // The first moment is 0.5·1.5 − 0.5·1 = 0.25, divided by 1 − 0.25. The second moment is
    // 0.75·2.25 + 0.25·1 = 1.9375, divided by 1 − 0.5625.
    adam.step(parameter, std::vector<float>{-1}, 0.5);
    EXPECT_NEAR(parameter[0], 0.9 - 0.05 * (0.25 / 0.75) / std::sqrt(1.9375 / 0.4375), 1e-6);
}

TEST(EstimatorTest, LossIsTheDivergenceAndGradientTheShareDifference) {
    const float one = std::log(3.0f);  // logits {log 3, 0} are probabilities of 3/4 and 1/4
    const std::vector<float> said{0, 0, 5, 5}, wanted{one, 0, 7, 7};
    std::vector<float> gradient(4);
    EXPECT_NEAR(kl_loss(gradient, said, wanted, 2),
                0.5 * (0.75 * std::log(1.5) + 0.25 * std::log(0.5)), 1e-6);
    EXPECT_NEAR(gradient[0], 0.5 * (0.5 - 0.75), 1e-6);
    EXPECT_NEAR(gradient[1], 0.5 * (0.5 - 0.25), 1e-6);
    EXPECT_NEAR(gradient[2], 0, 1e-6);
}

class TrainingTest : public testing::Test {
  protected:
    TrainingTest()
        : package_(test::tiny_package()),
          tokens_(test::random_tokens(256, package_->config().vocab_size, 5)) {}
    struct Trained {
        Estimator estimator;
        TrainingReport report;
    };
    Trained train(ThreadPool& threads, std::uint64_t seed) {
        auto decoder = Decoder::create(package_, threads).value();
        LocalExperts experts(package_, threads, {});
        const auto gates = RouterGates::load(package_, threads).value();
        const auto profile = calibrate_experts(*decoder, experts, experts, tokens_,
                                               {.window_tokens = 32}, {})
                                 .value();
        Estimator estimator(shape_, seed);
        auto report = train_estimator(
            estimator, *decoder, experts, gates, profile, tokens_,
            {.window_tokens = 32, .side_by_side = 4, .chunk_tokens = 8, .seed = seed}, {});
        EXPECT_TRUE(report.ok());
        return {std::move(estimator), report.value()};
    }

    std::shared_ptr<const ModelPackage> package_;
    std::vector<TokenId> tokens_;
    // The tiny model's MoE layers are 0, 2 and 3; two of them have a MoE layer before and can be
    // predicted.
    const EstimatorShape shape_{
        .hidden_size = 64, .num_experts = 8, .num_targets = 2, .width = 16, .inner = 12};
};

TEST_F(TrainingTest, EqualSeedsGiveEqualBitsForAllThreadCounts) {
    ThreadPool one(1), three(3);
    const Trained a = train(one, 4), b = train(three, 4), other = train(one, 5);
    const auto bits = [](const Trained& trained) {
        const auto values = trained.estimator.parameters();
        return std::vector<float>(values.begin(), values.end());
    };
    EXPECT_EQ(bits(a), bits(b));
    EXPECT_NE(bits(a), bits(other));
    EXPECT_EQ(a.report.num_tokens, 256u);
    EXPECT_EQ(a.report.num_steps, 8u);
}

TEST_F(TrainingTest, UntrainedEstimatorIsTheGateOnTheQuasiHiddenState) {
    auto& threads = test::compute_threads();
    auto decoder = Decoder::create(package_, threads).value();
    LocalExperts experts(package_, threads, {});
    const auto gates = std::make_shared<const RouterGates>(
        RouterGates::load(package_, threads).value());
    const auto profile = std::make_shared<const ExpertProfile>(
        calibrate_experts(*decoder, experts, experts, tokens_, {.window_tokens = 32}, {}).value());
    const auto gate = make_quasi_hidden_predictor(gates, profile),
               estimator = make_estimator_predictor(gates, profile,
                                                    std::make_shared<const Estimator>(shape_, 1));

    std::size_t asked = 0;
    const auto watch = [&](const RouteView& route) {
        for (const std::uint32_t target : {0u, 2u, 3u}) {
            std::vector<float> a(route.router_logits.size()), b(a.size());
            const bool knows = estimator->predict(route, target, b);
            EXPECT_EQ(knows,
                      (route.layer == 0 && target == 2) || (route.layer == 2 && target == 3));
            if (!knows) continue;

            gate->predict(route, target, a);
            EXPECT_EQ(a, b);
            ++asked;
        }
    };
    ASSERT_TRUE(
        walk_windows(*decoder, experts, tokens_, {.window_tokens = 32, .num_windows = 1}, watch, {})
            .ok());
    EXPECT_EQ(asked, 2u);
}

TEST_F(TrainingTest, TooShortTextIsRefused) {
    auto& threads = test::compute_threads();
    auto decoder = Decoder::create(package_, threads).value();
    LocalExperts experts(package_, threads, {});
    const auto gates = RouterGates::load(package_, threads).value();
    Estimator estimator(shape_, 1);
    const auto refused = [&](TrainingOptions options) {
        const auto report = train_estimator(estimator, *decoder, experts, gates, {}, tokens_,
                                            options, {});
        return !report.ok() && report.error().code == ErrorCode::invalid_argument;
    };
    EXPECT_TRUE(refused({.window_tokens = 128, .side_by_side = 4}));
    EXPECT_TRUE(refused({.window_tokens = 32, .num_windows = 3, .side_by_side = 4}));
    EXPECT_TRUE(refused({.window_tokens = 32, .num_windows = 9, .side_by_side = 4}));
    EXPECT_TRUE(refused({.window_tokens = 512}));
    EXPECT_TRUE(refused({.window_tokens = 32, .side_by_side = 2, .chunk_tokens = 5}));
}

}  // namespace
}  // namespace moex
