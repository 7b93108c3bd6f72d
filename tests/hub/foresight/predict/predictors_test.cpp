// Compares predictors with recorded routes and with slow reference versions of their formulas.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/replayed_routes.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

using Order = std::vector<std::uint16_t>;

// Returns the ids of the `count` experts with the largest confidence, the largest first; ties go to
// the lower id.
Order surest(std::span<const float> confidence, std::size_t count) {
    Order order(confidence.size());
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](std::uint16_t expert) { return confidence[expert]; });
    order.resize(count);
    return order;
}

// A row of a text that was decoded before, as a view of a layer with 16 experts, four per token.
struct ReplayedRow {
    SequenceRow row;
    RouteView seen;
    std::vector<float> confidence = std::vector<float>(16);

    ReplayedRow(std::uint32_t position, TokenId token) : row{nullptr, position, token} {
        seen = {.num_tokens = 1, .top_k = 4, .num_experts = 16, .rows = {&row, 1}};
    }
    Order guessed(ExpertPredictor& predictor) {
        EXPECT_TRUE(predictor.predict(seen, 1, confidence));
        return surest(confidence, 4);
    }
};

TEST(ReplayTest, SameTokenAtItsPositionIsKnownAndOthersAreNot) {
    const auto predictor = make_replay_predictor(1.0, 1);
    const Order chosen = {7, 3, 15, 0};
    ReplayedRow there(5, 42), other_token(5, 43), other_place(6, 42);
    EXPECT_FALSE(predictor->predict(there.seen, 1, there.confidence));

    RouteView route = there.seen;
    route.layer = 1;
    route.expert_ids = chosen;
    predictor->observe(route);
    EXPECT_EQ(there.guessed(*predictor), chosen);
    EXPECT_FALSE(predictor->predict(there.seen, 2, there.confidence));
    EXPECT_FALSE(predictor->predict(other_token.seen, 1, other_token.confidence));
    EXPECT_FALSE(predictor->predict(other_place.seen, 1, other_place.confidence));
}

TEST(ReplayTest, TextsThatShareATokenAtAPositionStayApart) {
    const auto predictor = make_replay_predictor(1.0, 1);
    const Order after_one = {7, 3, 15, 0}, after_two = {1, 2, 4, 8};
    const auto told = [&](std::uint32_t position, TokenId token, const Order& chosen) {
        ReplayedRow row(position, token);
        row.seen.layer = 1;
        row.seen.expert_ids = chosen;
        predictor->observe(row.seen);
    };
    told(0, 1, after_one);
    told(1, 42, after_one);
    told(0, 2, after_two);
    told(1, 42, after_two);

    for (const auto& [first, chosen] : {std::pair{1, after_one}, std::pair{2, after_two}}) {
        ReplayedRow before(0, first), row(1, 42);
        EXPECT_EQ(before.guessed(*predictor), chosen);
        EXPECT_EQ(row.guessed(*predictor), chosen) << "behind " << first;
    }
}

TEST(ReplayTest, TokenAheadIsTheOneThatFollowedLast) {
    const auto predictor = make_replay_predictor(1.0, 1, true),
               at_its_token = make_replay_predictor(1.0, 1);
    const Order first_time = {7, 3, 15, 0}, second_time = {1, 2, 4, 8};
    ReplayedRow before(0, 1), row(1, 42);
    const auto follows = [&](TokenId token, const Order& chosen) {
        ReplayedRow next(1, token);
        for (RouteView* seen : {&before.seen, &next.seen}) {
            seen->layer = 1;
            seen->expert_ids = chosen;
            predictor->observe(*seen);
            at_its_token->observe(*seen);
        }
    };
    EXPECT_FALSE(predictor->predict_next_token(before.seen, 1, before.confidence));
    follows(42, first_time);
    ASSERT_TRUE(predictor->predict_next_token(before.seen, 1, before.confidence));
    EXPECT_EQ(surest(before.confidence, 4), first_time);
    EXPECT_FALSE(predictor->predict_next_token(before.seen, 2, before.confidence));
    EXPECT_FALSE(predictor->predict_next_token(row.seen, 1, row.confidence));
    EXPECT_FALSE(at_its_token->predict_next_token(before.seen, 1, before.confidence));

    follows(43, second_time);
    ASSERT_TRUE(predictor->predict_next_token(before.seen, 1, before.confidence));
    EXPECT_EQ(surest(before.confidence, 4), second_time);
}

TEST(ReplayTest, RecallIsTheStatedOneAndExpertsAreDistinct) {
    const Order chosen = {7, 3, 15, 0};
    for (const double recall : {0.0, 0.79, 0.96}) {
        const auto predictor = make_replay_predictor(recall, 1),
                   again = make_replay_predictor(recall, 1);
        int right = 0;
        constexpr int num_tokens = 2000;
        for (std::uint32_t position = 0; position < num_tokens; ++position) {
            ReplayedRow row(position, 1);
            RouteView route = row.seen;
            route.layer = 1;
            route.expert_ids = chosen;
            predictor->observe(route);
            again->observe(route);

            Order guessed = row.guessed(*predictor);
            EXPECT_EQ(row.guessed(*again), guessed);
            for (const std::uint16_t expert : chosen)
                right += static_cast<int>(std::count(guessed.begin(), guessed.end(), expert));
            std::sort(guessed.begin(), guessed.end());
            EXPECT_EQ(std::unique(guessed.begin(), guessed.end()), guessed.end());
        }
        EXPECT_NEAR(right / (4.0 * num_tokens), recall, 0.02);
    }
}

// A fixture for predictors that read hidden rows, with a tiny model that reads a text.
class GatePredictorTest : public testing::Test {
  protected:
    GatePredictorTest()
        : package_(test::tiny_package()),
          experts_(package_, test::compute_threads(), {}),
          tokens_(test::random_tokens(40, package_->config().vocab_size, 5)) {
        auto decoder = Decoder::create(package_, test::compute_threads());
        auto gates = RouterGates::load(package_, test::compute_threads());
        if (!decoder.ok() || !gates.ok()) throw std::runtime_error("the tiny model does not load");
        decoder_ = std::move(decoder).value();
        gates_ = std::make_shared<const RouterGates>(std::move(gates).value());
    }
    void walk(const RouteWatch& watch) {
        const Status walked = walk_windows(*decoder_, experts_, tokens_, {.window_tokens = 20},
                                           watch, {});
        ASSERT_TRUE(walked.ok()) << walked.error().message;
    }
    ExpertProfile profile(std::uint32_t chunk_tokens) {
        auto made = calibrate_experts(*decoder_, experts_, experts_, tokens_,
                                      {.window_tokens = 20, .chunk_tokens = chunk_tokens}, {});
        if (!made.ok()) throw std::runtime_error(made.error().message);
        return std::move(made).value();
    }
    std::vector<float> tensor(const std::string& name) const {
        const auto found = package_->tensor(name);
        std::vector<float> values(found->num_elements());
        tensor_to_float(*found, 0, values);
        return values;
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts experts_;
    std::vector<TokenId> tokens_;
    std::unique_ptr<Decoder> decoder_;
    std::shared_ptr<const RouterGates> gates_;
};

TEST_F(GatePredictorTest, GateOnItsOwnLayersRowsHasTheRoutersBits) {
    const auto predictor = make_next_gate_predictor(gates_);
    std::size_t layers = 0;
    walk([&](const RouteView& route) {
        std::vector<float> confidence(route.router_logits.size());
        ASSERT_TRUE(predictor->predict(route, route.layer, confidence));
        EXPECT_EQ(std::memcmp(confidence.data(), route.router_logits.data(),
                              confidence.size() * sizeof(float)),
                  0);
        ++layers;
    });
    EXPECT_EQ(layers, 6u);  // three MoE layers in each of two windows
}

// The default vector of expert e is the mean of the answers of e, computed here one row at a time,
// in f64.
TEST_F(GatePredictorTest, DefaultVectorsAreMeansOfSingleAnswersForAllChunks) {
    const ModelConfig& config = package_->config();
    const std::size_t hidden = config.hidden_size;
    std::vector<double> sums(config.num_layers * config.num_experts * hidden);
    std::vector<std::uint64_t> uses(config.num_layers * config.num_experts);
    walk([&](const RouteView& route) {
        for (std::size_t pair = 0; pair < route.expert_ids.size(); ++pair) {
            const float gate = 1;
            std::vector<float> y(hidden);
            ASSERT_TRUE(experts_
                            .compute(route.layer, route.expert_ids[pair],
                                     route.hidden.subspan(pair / route.top_k * hidden, hidden),
                                     {&gate, 1}, y)
                            .ok());
            const std::size_t unit = route.layer * config.num_experts + route.expert_ids[pair];
            ++uses[unit];
            for (std::size_t i = 0; i < hidden; ++i) sums[unit * hidden + i] += double{y[i]};
        }
    });

    const ExpertProfile whole = profile(20), cut = profile(3);
    EXPECT_EQ(whole.uses, uses);
    EXPECT_EQ(whole.num_tokens, 40u);
    for (std::size_t i = 0; i < sums.size(); ++i) {
        const auto count = static_cast<double>(uses[i / hidden]);
        EXPECT_EQ(whole.default_vectors[i], count > 0 ? static_cast<float>(sums[i] / count) : 0);
    }
    EXPECT_EQ(whole.default_vectors, cut.default_vectors);
    EXPECT_EQ(whole.uses, cut.uses);
}

// Computes the predictor's formula in f64, for the next MoE layer and for the MoE layer after the
// next.
TEST_F(GatePredictorTest, QuasiHiddenStateFollowsItsFormula) {
    const auto made = std::make_shared<const ExpertProfile>(profile(20));
    const auto predictor = make_quasi_hidden_predictor(gates_, made);
    const ModelConfig& config = package_->config();
    const std::size_t hidden = config.hidden_size;
    const std::uint32_t target = 3;
    const auto norm = tensor("model.layers.3.post_attention_layernorm.weight"),
               router = tensor("model.layers.3.mlp.gate.weight");

    walk([&](const RouteView& route) {
        std::vector<float> confidence(std::size_t{route.num_tokens} * route.num_experts);
        ASSERT_TRUE(predictor->predict(route, target, confidence));
        for (std::size_t row = 0; row < route.num_tokens; ++row) {
            std::vector<double> x(hidden);
            double squares = 0;
            for (std::size_t i = 0; i < hidden; ++i) {
                x[i] = route.residual[row * hidden + i];
                for (std::size_t k = row * route.top_k; k < (row + 1) * route.top_k; ++k)
                    x[i] += double{route.expert_weights[k]} *
                            made->default_vector(route.layer, route.expert_ids[k])[i];
                squares += x[i] * x[i];
            }
            const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) +
                                               config.rms_norm_eps);
            for (std::size_t i = 0; i < hidden; ++i) x[i] *= scale * norm[i];

            for (std::size_t e = 0; e < route.num_experts; ++e) {
                double logit = 0;
                for (std::size_t i = 0; i < hidden; ++i) logit += x[i] * router[e * hidden + i];
                EXPECT_NEAR(confidence[row * route.num_experts + e], logit, 1e-4);
            }
            EXPECT_NEAR(predictor->expected_hidden()[row * hidden], x[0], 1e-4);
        }
    });
}

TEST_F(GatePredictorTest, WalkBeyondTheTextOrTheContextIsRefused) {
    const auto count = [&](WindowOptions options) {
        return count_windows(package_->config(), 24, options);
    };
    EXPECT_EQ(count({.window_tokens = 8}).value(), 3u);
    EXPECT_FALSE(count({.window_tokens = 25}).ok());
    EXPECT_FALSE(count({.window_tokens = 8, .num_windows = 4}).ok());
    EXPECT_FALSE(count({.window_tokens = 257}).ok());
    EXPECT_FALSE(count({.window_tokens = 1}).ok());
}

}  // namespace
}  // namespace moex
