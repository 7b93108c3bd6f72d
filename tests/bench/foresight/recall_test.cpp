// Checks the measurements of predictors against values computed by hand, and against a plain count
// over a recorded walk of a text through the model.
#include "bench/foresight/recall.h"

#include <algorithm>
#include <map>

#include "bench/foresight/contest.h"
#include "bench/foresight/past_predictors.h"
#include "hub/foresight/predict/gate_predictors.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex::bench {
namespace {

TEST(SpreadTest, MeanAndSampleDeviationAreThoseByHand) {
    Spread spread;
    EXPECT_EQ(spread.deviation(), 0);
    for (const double value : {2.0, 4.0, 9.0}) spread.add(value);
    EXPECT_DOUBLE_EQ(spread.mean(), 5);
    EXPECT_DOUBLE_EQ(spread.deviation(), std::sqrt((9.0 + 1.0 + 16.0) / 2));
}

TEST(SurestExpertsTest, TiesGoToTheLowerId) {
    const std::vector<float> confidence{0, 3, -1, 3, 2};
    EXPECT_EQ(surest_experts(confidence, 3), (std::vector<std::uint16_t>{1, 3, 4}));
    EXPECT_EQ(surest_experts(confidence, 9).size(), 5u);
}

TEST(RecallMeterTest, PredictedShareOfRequestedExpertsIsCounted) {
    RecallMeter meter(
        {.num_layers = 2, .first_layer = 1, .top_k = 2, .fetches = {2, 3}, .tokens_max = 4});
    const std::vector<float> confidence{4, 3, 2, 1};
    const std::vector<std::uint16_t> half{2, 0}, none{3, 2};

    // With 2 fetched experts the hit is expert 0, the second by weight; with 3, both experts.
    meter.record(1, 0, confidence, half);
    meter.record(1, 1, confidence, none);  // hits with 2 fetches: no expert; with 3: one
    meter.record(0, 0, confidence, none);  // layer 0 is not part of the means
    meter.record_cosine(1, 0, 0.5);
    meter.record_cosine(0, 1, 0.25);         // layer 0 is not part of the means over layers
    EXPECT_EQ(meter.recall(0).count(), 0u);  // a window is counted when it has ended
    meter.end_window();
    EXPECT_DOUBLE_EQ(meter.recall(0).mean(), 0.25);
    EXPECT_DOUBLE_EQ(meter.recall(1).mean(), 0.75);
    EXPECT_DOUBLE_EQ(meter.rank_hits(0).mean(), 0);
    EXPECT_DOUBLE_EQ(meter.rank_hits(1).mean(), 0.5);
    EXPECT_DOUBLE_EQ(meter.at_token(0).mean(), 0.5);
    EXPECT_DOUBLE_EQ(meter.at_token(1).mean(), 0);
    EXPECT_EQ(meter.at_token(2).count(), 0u);
    EXPECT_DOUBLE_EQ(meter.rank_at_token(0, 0).mean(), 0);
    EXPECT_DOUBLE_EQ(meter.rank_at_token(0, 1).mean(), 1);
    EXPECT_DOUBLE_EQ(meter.rank_at_token(1, 1).mean(), 0);
    EXPECT_EQ(meter.rank_at_token(2, 0).count(), 0u);
    EXPECT_DOUBLE_EQ(meter.cosine_at_token(0).mean(), 0.5);
    EXPECT_EQ(meter.cosine_at_token(1).count(), 0u);
    EXPECT_DOUBLE_EQ(meter.layer_recall(0, 1).mean(), 0.5);
    EXPECT_DOUBLE_EQ(meter.layer_cosine(1).mean(), 0.5);

    meter.record_none(1, 0);
    meter.end_window();
    EXPECT_DOUBLE_EQ(meter.recall(1).mean(), 0.375);
    EXPECT_EQ(meter.recall(1).count(), 2u);
    EXPECT_DOUBLE_EQ(meter.at_token(0).mean(), 0.25);
    EXPECT_DOUBLE_EQ(meter.rank_at_token(0, 1).mean(), 0.5);
    EXPECT_EQ(meter.cosine_at_token(0).count(), 1u);
}

// Records the rows and the routes of a walk of a text through the model.
struct Trace {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<float>> hidden;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint16_t>> asked;

    void add(const RouteView& route) {
        for (std::size_t row = 0; row < route.num_tokens; ++row) {
            const auto x = route.hidden.subspan(row * route.hidden_size, route.hidden_size);
            const auto ids = route.expert_ids.subspan(row * route.top_k, route.top_k);
            const std::pair key{route.layer, route.rows[row].position};
            hidden[key].assign(x.begin(), x.end());
            asked[key].assign(ids.begin(), ids.end());
        }
    }
};

class ContestTest : public testing::Test {
  protected:
    static constexpr std::uint32_t window_tokens = 24;
    ContestTest()
        : package_(test::tiny_package()),
          experts_(package_, test::compute_threads(), {}),
          tokens_(test::random_tokens(window_tokens, package_->config().vocab_size, 9)) {
        auto decoder = Decoder::create(package_, test::compute_threads());
        auto gates = RouterGates::load(package_, test::compute_threads());
        if (!decoder.ok() || !gates.ok()) throw std::runtime_error("the tiny model does not load");
        decoder_ = std::move(decoder).value();
        gates_ = std::make_shared<const RouterGates>(std::move(gates).value());
    }
    std::vector<Contestant> contestants() const {
        std::vector<Contestant> all;
        all.push_back({make_next_gate_predictor(gates_), 1});
        all.push_back({make_next_gate_predictor(gates_), 2});
        all.push_back({make_previous_token_predictor(package_->config()), 0});
        return all;
    }
    void walk(Contest& contest, Trace& trace, std::uint32_t chunk_tokens) {
        const Status walked = walk_windows(
            *decoder_, experts_, tokens_,
            {.window_tokens = window_tokens, .chunk_tokens = chunk_tokens},
            [&](const RouteView& route) {
                trace.add(route);
                contest.watch(route);
            },
            [&](std::uint32_t, std::uint32_t) { contest.end_window(); });
        ASSERT_TRUE(walked.ok()) << walked.error().message;
    }
    // Returns the recall of the router of layer `target`, applied to the rows of layer `from`,
    // computed with plain loops.
    double recall_of_gate(const Trace& trace, std::uint32_t from, std::uint32_t target) const {
        const auto found =
            package_->tensor(text("model.layers.", target, ".mlp.gate.weight")).value();
        std::vector<float> router(found.num_elements());
        tensor_to_float(found, 0, router);
        double hits = 0;
        for (std::uint32_t position = 0; position < window_tokens; ++position) {
            const auto& x = trace.hidden.at({from, position});
            const auto& asked = trace.asked.at({target, position});
            std::vector<std::pair<double, int>> logits;
            for (std::size_t e = 0; e < router.size() / x.size(); ++e) {
                double logit = 0;
                for (std::size_t i = 0; i < x.size(); ++i)
                    logit += double{x[i]} * router[e * x.size() + i];
                logits.push_back({-logit, static_cast<int>(e)});
            }
            std::sort(logits.begin(), logits.end());
            for (std::size_t i = 0; i < asked.size(); ++i)
                hits += std::find(asked.begin(), asked.end(), logits[i].second) != asked.end();
        }
        return hits / (2.0 * window_tokens);
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts experts_;
    std::vector<TokenId> tokens_;
    std::unique_ptr<Decoder> decoder_;
    std::shared_ptr<const RouterGates> gates_;
};

TEST_F(ContestTest, GateRecallEqualsAPlainCount) {
    Contest contest(package_->config(), contestants());
    Trace trace;
    walk(contest, trace, 7);

    // The MoE layers of this model are layers 0, 2 and 3.
    EXPECT_DOUBLE_EQ(contest.meter(0).layer_recall(1, 0).mean(), recall_of_gate(trace, 0, 2));
    EXPECT_DOUBLE_EQ(contest.meter(0).layer_recall(2, 0).mean(), recall_of_gate(trace, 2, 3));
    EXPECT_EQ(contest.meter(0).layer_recall(0, 0).count(), 0u);
    EXPECT_DOUBLE_EQ(contest.meter(1).layer_recall(2, 0).mean(), recall_of_gate(trace, 0, 3));
    EXPECT_EQ(contest.meter(1).layer_recall(1, 0).count(), 0u);
    EXPECT_DOUBLE_EQ(contest.meter(1).recall(0).mean(), recall_of_gate(trace, 0, 3));
}

TEST_F(ContestTest, PreviousTokenRecallEqualsAPlainCount) {
    Contest contest(package_->config(), contestants());
    Trace trace;
    walk(contest, trace, 7);

    double hits = 0;
    for (std::uint32_t position = 0; position < window_tokens; ++position) {
        const std::vector<std::uint16_t> said = position == 0 ? std::vector<std::uint16_t>{0, 1}
                                                              : trace.asked.at({2, position - 1});
        for (const std::uint16_t expert : trace.asked.at({2, position}))
            hits += std::find(said.begin(), said.end(), expert) != said.end();
    }
    EXPECT_DOUBLE_EQ(contest.meter(2).layer_recall(1, 0).mean(), hits / (2.0 * window_tokens));
}

TEST_F(ContestTest, ChunksChangeNoFigure) {
    Contest whole(package_->config(), contestants()), cut(package_->config(), contestants());
    Trace ignored;
    walk(whole, ignored, window_tokens);
    walk(cut, ignored, 1);
    for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(whole.meter(i).recall(0).mean(), cut.meter(i).recall(0).mean());
        EXPECT_EQ(whole.meter(i).layer_cosine(2).mean(), cut.meter(i).layer_cosine(2).mean());
        EXPECT_EQ(whole.meter(i).at_token(5).mean(), cut.meter(i).at_token(5).mean());
        EXPECT_EQ(whole.meter(i).cosine_at_token(5).mean(), cut.meter(i).cosine_at_token(5).mean());
    }
}

}  // namespace
}  // namespace moex::bench
