// Predictors against hand-made pasts and plain twins of their formulas.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/past_predictors.h"
#include "hub/foresight/predict/recall.h"
#include "hub/foresight/predict/replayed_routes.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

// One MoE layer of three experts, two a token.
ModelConfig small_config() {
    ModelConfig config;
    config.num_layers = 1;
    config.num_experts = 3;
    config.top_k = 2;
    config.layer_is_moe = {1};
    return config;
}

// A past told route by route to a predictor, as a sequence or several.
class Past {
  public:
    explicit Past(ExpertPredictor& predictor) : predictor_(predictor) {}
    void asked(KvCache::Sequence* who, std::uint32_t position, std::vector<std::uint16_t> experts,
               std::vector<float> weights = {0.75f, 0.25f}) {
        const SequenceRow row{.kv = who, .position = position};
        predictor_.observe({.num_tokens = 1,
                            .top_k = 2,
                            .num_experts = 3,
                            .rows = {&row, 1},
                            .expert_ids = experts,
                            .expert_weights = weights});
    }
    // The experts for a token to come, the surest first.
    std::vector<std::uint16_t> order(KvCache::Sequence* who, std::uint32_t position) {
        const SequenceRow row{.kv = who, .position = position};
        std::vector<float> confidence(3);
        EXPECT_TRUE(predictor_.predict(
            {.num_tokens = 1, .top_k = 2, .num_experts = 3, .rows = {&row, 1}}, 0, confidence));
        return surest_experts(confidence, 3);
    }

  private:
    ExpertPredictor& predictor_;
};

using Order = std::vector<std::uint16_t>;

class PastPredictorTest : public testing::Test {
  protected:
    PastPredictorTest() : cache_(test::tiny_config(), {4, 8}), one_(cache_), other_(cache_) {}
    KvCache cache_;
    KvCache::Sequence one_, other_;
    const ModelConfig config_ = small_config();
};

TEST_F(PastPredictorTest, PreviousTokenGoesByWeightsThenByWhatWasBefore) {
    const auto predictor = make_previous_token_predictor(config_);
    Past past(*predictor);
    past.asked(&one_, 0, {2, 0});
    past.asked(&one_, 1, {1, 2}, {0.6f, 0.4f});
    EXPECT_EQ(past.order(&one_, 2), (Order{1, 2, 0}));

    past.asked(&other_, 0, {0, 1});
    EXPECT_EQ(past.order(&one_, 2), (Order{1, 2, 0}));  // another's past changes nothing
    EXPECT_EQ(past.order(&one_, 0), (Order{0, 1, 2}));  // one that begins has none: ids in order
}

// One row of 16 experts, four a token, at a position of a text that was there before.
struct ReplayedRow {
    SequenceRow row;
    RouteView seen;
    std::vector<float> confidence = std::vector<float>(16);

    ReplayedRow(std::uint32_t position, TokenId token) : row{nullptr, position, token} {
        seen = {.num_tokens = 1, .top_k = 4, .num_experts = 16, .rows = {&row, 1}};
    }
    Order guessed(ExpertPredictor& predictor) {
        EXPECT_TRUE(predictor.predict(seen, 1, confidence));
        return surest_experts(confidence, 4);
    }
};

TEST_F(PastPredictorTest, ReplayKnowsWhatTheSameTokenChoseAtItsPlaceAndNothingElse) {
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

TEST_F(PastPredictorTest, ReplayKeepsTextsApartThatHaveATokenInOnePlace) {
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

TEST_F(PastPredictorTest, ReplayThatIsATokenAheadKnowsWhatFollowedLast) {
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
    EXPECT_EQ(surest_experts(before.confidence, 4), first_time);
    EXPECT_FALSE(predictor->predict_next_token(before.seen, 2, before.confidence));
    EXPECT_FALSE(predictor->predict_next_token(row.seen, 1, row.confidence));
    EXPECT_FALSE(at_its_token->predict_next_token(before.seen, 1, before.confidence));

    follows(43, second_time);
    ASSERT_TRUE(predictor->predict_next_token(before.seen, 1, before.confidence));
    EXPECT_EQ(surest_experts(before.confidence, 4), second_time);
}

TEST_F(PastPredictorTest, ReplayIsAsOftenRightAsItSaysAndNamesEachExpertOnce) {
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

TEST_F(PastPredictorTest, LruCountsEverybodysUsesAndTheLargerWeightAsLater) {
    const auto predictor = make_lru_predictor(config_);
    Past past(*predictor);
    past.asked(&one_, 0, {1, 0});
    EXPECT_EQ(past.order(&other_, 0), (Order{1, 0, 2}));
    past.asked(&other_, 0, {2, 0});
    EXPECT_EQ(past.order(&one_, 1), (Order{2, 0, 1}));
}

TEST_F(PastPredictorTest, LfuCountsEverybodysUses) {
    const auto predictor = make_lfu_predictor(config_);
    Past past(*predictor);
    past.asked(&one_, 0, {2, 1});
    past.asked(&other_, 0, {2, 0});
    past.asked(&other_, 1, {1, 2});
    EXPECT_EQ(past.order(&one_, 1), (Order{2, 1, 0}));
}

TEST_F(PastPredictorTest, PopularityIsTheCalibrationTexts) {
    const auto profile = std::make_shared<const ExpertProfile>(
        ExpertProfile{.num_layers = 1, .num_experts = 3, .num_tokens = 10, .uses = {4, 10, 6}});
    const auto predictor = make_popularity_predictor(profile);
    Past past(*predictor);
    past.asked(&one_, 0, {0, 2});
    EXPECT_EQ(past.order(&one_, 1), (Order{1, 2, 0}));

    const auto request = make_request_popularity_predictor(config_, profile);
    Past requests_past(*request);
    EXPECT_EQ(requests_past.order(&one_, 0), (Order{1, 2, 0}));
    requests_past.asked(&one_, 0, {0, 2});
    EXPECT_EQ(requests_past.order(&one_, 1),
              (Order{2, 0, 1}));  // one use weighs more than 10 of 10
    EXPECT_EQ(requests_past.order(&other_, 0), (Order{1, 2, 0}));
}

TEST(RandomPredictorTest, IsUniformAndRepeatsItself) {
    const auto first = make_random_predictor(3), second = make_random_predictor(3);
    std::vector<std::uint32_t> chosen(4);
    for (int i = 0; i < 4000; ++i) {
        std::vector<float> a(4), b(4);
        first->predict({}, 0, a);
        second->predict({}, 0, b);
        ASSERT_EQ(a, b);
        ++chosen[surest_experts(a, 1)[0]];
    }
    for (const std::uint32_t count : chosen) EXPECT_NEAR(count, 1000, 150);
}

// Predictors that read hidden rows, on a walk through the tiny model.
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

TEST_F(GatePredictorTest, AGateOnItsOwnLayersRowsIsTheRouterBitForBit) {
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
    EXPECT_EQ(layers, 6u);  // two windows, three MoE layers
}

// default_vector[e] = mean of expert e's answers, one row at a time, in f64.
TEST_F(GatePredictorTest, DefaultVectorsAreTheMeansOfSingleAnswersHoweverTheTextIsCut) {
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

// The formula in plain f64, to the next MoE layer and to the one behind it.
TEST_F(GatePredictorTest, QuasiHiddenIsItsFormula) {
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

}  // namespace
}  // namespace moex
