// Tests the hints that a decoder's steps give for the next layers.
#include "hub/foresight/predict/hints.h"

#include <algorithm>
#include <map>
#include <set>

#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/replayed_routes.h"
#include "hub/foresight/predictor_choice.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

// A backend that wants hints, and records the hints and the requested experts of each layer.
class HintedExperts : public ExpertBackend {
  public:
    explicit HintedExperts(ExpertBackend& experts) : experts_(experts) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        last_layer_ = batch.layer;
        hints[last_layer_].clear();
        asked[last_layer_] = {batch.expert_ids.begin(), batch.expert_ids.end()};
        return experts_.submit(batch);
    }
    void hint(std::span<const ExpertHint> given) override {
        hints[last_layer_].assign(given.begin(), given.end());
    }
    const char* name() const override { return "hinted"; }
    bool wants_hints() const override { return wants; }

    bool wants = true;
    // hints received after the latest submit() of each layer
    std::map<std::uint32_t, std::vector<ExpertHint>> hints;
    // experts requested by the latest submit() of each layer
    std::map<std::uint32_t, std::set<std::uint16_t>> asked;

  private:
    ExpertBackend& experts_;
    std::uint32_t last_layer_ = 0;
};

class HintsTest : public testing::Test {
  protected:
    HintsTest()
        : package_(test::tiny_package()),
          local_(package_, test::compute_threads(), {}, Arithmetic::int8),
          experts_(local_),
          tokens_(test::random_tokens(64, package_->config().vocab_size, 3)),
          cache_(package_->config(), {16, 64, KvDtype::f32}) {
        auto decoder = Decoder::create(package_, test::compute_threads());
        auto gates = RouterGates::load(package_, test::compute_threads());
        if (!decoder.ok() || !gates.ok()) throw std::runtime_error("the tiny model does not load");
        decoder_ = std::move(decoder).value();
        gates_ = std::make_shared<const RouterGates>(*std::move(gates));
    }
    std::vector<float> step(std::uint32_t num_rows) {
        KvCache::Sequence kv(cache_);
        const StepRows rows{
            .kv = &kv, .tokens = std::span(tokens_).first(num_rows), .all_logits = true};
        auto result = decoder_->step({&rows, 1}, experts_);
        if (!result.ok()) throw std::runtime_error(result.error().message);
        return std::move(result->logits);
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts local_;
    HintedExperts experts_;
    std::vector<TokenId> tokens_;
    KvCache cache_;
    std::unique_ptr<Decoder> decoder_;
    std::shared_ptr<const RouterGates> gates_;
};

// With a lead of three, a layer is predicted when the model is three layers before it, and again
// one layer before it.
TEST_F(HintsTest, LayersArePredictedAtTheLeadAndOneBefore) {
    Hints hints(gates_, make_next_gate_predictor(gates_), 2, 3);
    decoder_->foresee_with(&hints);
    step(1);

    const auto layers = gates_->moe_layers();
    for (std::size_t i = 0; i < layers.size(); ++i) {
        std::set<std::uint32_t> wanted, named;
        for (const std::size_t ahead : {1u, 2u, 3u})
            if (i + ahead < layers.size() && (i == 0 || ahead != 2))
                wanted.insert(layers[i + ahead]);
        for (const ExpertHint& hint : experts_.hints[layers[i]]) named.insert(hint.layer);
        EXPECT_EQ(named, wanted) << "behind layer " << layers[i];
    }
}

// The replay predictor knows the next token, which is the token that followed when the same text
// was decoded before.
TEST_F(HintsTest, KnownNextTokensFirstLayersArePredictedBeforeIt) {
    const auto layers = gates_->moe_layers();
    ASSERT_GE(layers.size(), 3u);
    for (const bool is_token_ahead : {false, true}) {
        Hints hints(gates_, make_replay_predictor(1.0, 1, is_token_ahead), package_->config().top_k,
                    2);
        decoder_->foresee_with(&hints);
        using Named = std::map<std::uint32_t, std::set<std::uint16_t>>;
        std::map<std::uint32_t, Named> named;  // hints after each layer of the next-to-last token
        // experts requested by the last token in each layer
        std::map<std::uint32_t, std::set<std::uint16_t>> asked;
        for (int turn = 0; turn < 2; ++turn) {
            KvCache::Sequence kv(cache_);
            for (std::size_t i = 0; i < 3; ++i) {
                const StepRows rows{.kv = &kv, .tokens = std::span(tokens_).subspan(i, 1)};
                ASSERT_TRUE(decoder_->step({&rows, 1}, experts_).ok());
                if (i == 1)
                    for (const auto& [layer, given] : experts_.hints) {
                        named[layer].clear();
                        for (const ExpertHint& hint : given)
                            named[layer][hint.layer].insert(hint.expert);
                    }
            }
            asked = experts_.asked;
        }

        Named& behind_last = named[layers.back()];
        Named& before_last = named[layers[layers.size() - 2]];
        EXPECT_TRUE(before_last.contains(layers.back()));
        if (!is_token_ahead) {
            EXPECT_TRUE(behind_last.empty());
            EXPECT_EQ(before_last.size(), 1u);
            continue;
        }
        EXPECT_EQ(before_last[layers[0]], asked[layers[0]]);
        EXPECT_EQ(behind_last[layers[0]], asked[layers[0]]);
        EXPECT_EQ(behind_last[layers[1]], asked[layers[1]]);
        EXPECT_EQ(behind_last.size(), 2u);
    }
}

TEST_F(HintsTest, HintsNameEachExpertOnceAndChangeNoBit) {
    const std::vector<float> without = step(4);
    for (const auto& [layer, hints] : experts_.hints) EXPECT_TRUE(hints.empty());

    const std::uint32_t per_row = 2 * package_->config().top_k;
    Hints hints(gates_, make_next_gate_predictor(gates_), per_row);
    decoder_->foresee_with(&hints);
    EXPECT_EQ(step(4), without);

    const auto layers = gates_->moe_layers();
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const std::vector<ExpertHint>& given = experts_.hints[layers[i]];
        if (i + 1 == layers.size()) {
            EXPECT_TRUE(given.empty()) << "no layer follows the last one";
            continue;
        }
        EXPECT_GE(given.size(), per_row);
        EXPECT_TRUE(std::is_sorted(given.begin(), given.end(), [](const auto& a, const auto& b) {
            return a.confidence > b.confidence;
        }));
        std::set<std::uint16_t> named;
        for (const ExpertHint& hint : given) {
            EXPECT_EQ(hint.layer, layers[i + 1]);
            EXPECT_TRUE(named.insert(hint.expert).second);
        }
    }

    // This many experts per row mean that all experts of a layer are predicted.
    Hints everything(gates_, make_next_gate_predictor(gates_), package_->config().num_experts);
    decoder_->foresee_with(&everything);
    (void)step(2);
    EXPECT_EQ(experts_.hints[layers[0]].size(), package_->config().num_experts);
}

TEST_F(HintsTest, PredictorIsChosenByItsName) {
    auto sources = load_speculation_sources(package_, test::compute_threads()).value();
    const auto name_of = [&](std::string_view wanted, bool sees_residual = true) {
        return std::string((*make_predictor(wanted, sources, sees_residual))->name());
    };
    const auto code_of = [&](std::string_view wanted, bool sees_residual = true) {
        return make_predictor(wanted, sources, sees_residual).error().code;
    };
    EXPECT_EQ(name_of("next-gate"), "next-gate");
    EXPECT_EQ(name_of("auto"), "next-gate");
    for (const char* unserved : {"wizard", "lru", "popularity", "random"})
        EXPECT_EQ(code_of(unserved), ErrorCode::invalid_argument) << unserved;
    for (const char* lacks : {"estimator", "quasi-hidden"})
        EXPECT_EQ(code_of(lacks), ErrorCode::not_found) << lacks;

    const ModelConfig& config = package_->config();
    sources.profile = std::make_shared<const ExpertProfile>(
        *calibrate_experts(*decoder_, local_, local_, tokens_, {.window_tokens = 32}, {}));
    EXPECT_EQ(name_of("auto"), "quasi-hidden");
    EXPECT_EQ(code_of("estimator"), ErrorCode::not_found);
    sources.estimator = std::make_shared<const Estimator>(
        EstimatorShape{
            .hidden_size = config.hidden_size, .num_experts = config.num_experts, .num_targets = 2},
        5);
    EXPECT_EQ(name_of("auto"), "estimator");
    EXPECT_EQ(name_of("quasi-hidden"), "quasi-hidden");

    // Steps on a GPU do not show the residual, so predictors that read it cannot be used.
    EXPECT_EQ(name_of("auto", false), "next-gate");
    EXPECT_EQ(code_of("estimator", false), ErrorCode::unsupported);
    EXPECT_EQ(code_of("quasi-hidden", false), ErrorCode::unsupported);
}

TEST_F(HintsTest, ManyRowsOrAnUninterestedBackendGetNoHints) {
    Hints hints(gates_, make_next_gate_predictor(gates_), 4);
    decoder_->foresee_with(&hints);
    (void)step(Hints::rows_max + 1);
    for (const auto& [layer, given] : experts_.hints) EXPECT_TRUE(given.empty());
    experts_.wants = false;
    (void)step(1);
    for (const auto& [layer, given] : experts_.hints) EXPECT_TRUE(given.empty());
}

}  // namespace
}  // namespace moex
