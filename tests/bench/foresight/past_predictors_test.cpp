// Tests of predictors that know only the past, with pasts that are written by hand.
#include "bench/foresight/past_predictors.h"

#include "bench/foresight/recall.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex::bench {
namespace {

// A model with a single MoE layer of three experts, two experts per token.
ModelConfig small_config() {
    ModelConfig config;
    config.num_layers = 1;
    config.num_experts = 3;
    config.top_k = 2;
    config.layers = {LayerPlan{.is_routed = true}};
    return config;
}

// Passes a past to a predictor, route by route, for one sequence or several.
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
    // Returns the predicted experts of the next token, the most likely expert first.
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

TEST_F(PastPredictorTest, PreviousTokenOrdersByWeightThenByAge) {
    const auto predictor = make_previous_token_predictor(config_);
    Past past(*predictor);
    past.asked(&one_, 0, {2, 0});
    past.asked(&one_, 1, {1, 2}, {0.6f, 0.4f});
    EXPECT_EQ(past.order(&one_, 2), (Order{1, 2, 0}));

    past.asked(&other_, 0, {0, 1});
    EXPECT_EQ(past.order(&one_, 2),
              (Order{1, 2, 0}));  // a step of another sequence does not change this prediction
    // A new sequence has no past, so the order is by expert id.
    EXPECT_EQ(past.order(&one_, 0), (Order{0, 1, 2}));
}

TEST_F(PastPredictorTest, LruCountsAllSequencesAndLargerWeightsAsLater) {
    const auto predictor = make_lru_predictor(config_);
    Past past(*predictor);
    past.asked(&one_, 0, {1, 0});
    EXPECT_EQ(past.order(&other_, 0), (Order{1, 0, 2}));
    past.asked(&other_, 0, {2, 0});
    EXPECT_EQ(past.order(&one_, 1), (Order{2, 0, 1}));
}

TEST_F(PastPredictorTest, LfuCountsTheUsesOfAllSequences) {
    const auto predictor = make_lfu_predictor(config_);
    Past past(*predictor);
    past.asked(&one_, 0, {2, 1});
    past.asked(&other_, 0, {2, 0});
    past.asked(&other_, 1, {1, 2});
    EXPECT_EQ(past.order(&one_, 1), (Order{2, 1, 0}));
}

TEST_F(PastPredictorTest, PopularityFollowsTheCalibrationText) {
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
              (Order{2, 0, 1}));  // one use by this sequence outweighs 10 of 10 in the profile
    EXPECT_EQ(requests_past.order(&other_, 0), (Order{1, 2, 0}));
}

TEST(RandomPredictorTest, RandomNumbersAreUniformAndRepeatable) {
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

}  // namespace
}  // namespace moex::bench
