// Compares the trial of a shadow with a plain trial that steps one token at a time.
#include "bench/foresight/shadow_trial.h"

#include <cmath>

#include "bench/foresight/fewer_experts.h"
#include "hub/foresight/shadow/shadow_experts.h"
#include "hub/model/pack/shadow_writer.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex::bench {
namespace {

class ShadowTrialTest : public testing::Test {
  protected:
    ShadowTrialTest()
        : folder_("shadow"),
          package_(test::tiny_package()),
          served_(package_, test::compute_threads(), {}, Arithmetic::int8) {
        auto decoder = Decoder::create(package_, test::compute_threads());
        if (!decoder.ok()) throw std::runtime_error(decoder.error().message);
        decoder_ = std::move(decoder).value();
    }
    ShadowPackage shadow(ShadowDtype dtype) const {
        const auto path = folder_.path() / shadow_dtype_name(dtype);
        const auto report = write_shadow(*package_, {.dtype = dtype}, path, test::compute_threads(),
                                         {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        auto opened = ShadowPackage::open(path, *package_);
        if (!opened.ok()) throw std::runtime_error(opened.error().message);
        return std::move(opened).value();
    }
    RecallMeter meter() const {
        const ModelConfig& config = package_->config();
        return RecallMeter(
            {.num_layers = 3, .top_k = config.top_k, .fetches = {config.top_k}, .tokens_max = 64});
    }

    test::TemporaryFolder folder_;
    std::shared_ptr<const ModelPackage> package_;
    LocalExperts served_;
    std::unique_ptr<Decoder> decoder_;
};

// The experts with the largest weights of each row get the sum of all the row's weights. A plain
// loop over experts gives the same answers.
TEST_F(ShadowTrialTest, FewerExpertsAreTheHeaviestWithAllWeight) {
    const ModelConfig& config = package_->config();
    const std::uint32_t hidden = config.hidden_size, layer = 2, rows = 2;
    const auto x = test::random_floats(rows * hidden, 4);
    const std::vector<std::uint16_t> ids{5, 1, 1, 6}, heaviest{1, 6};
    const std::vector<float> weights{0.25f, 0.75f, 0.25f, 0.5f};
    std::vector<float> y(rows * hidden), wanted(rows * hidden);
    const auto answer = [&](ExpertBackend& experts, std::uint32_t top_k,
                            std::span<const std::uint16_t> asked, std::span<const float> gates,
                            std::span<float> out) {
        auto round = experts.submit({.layer = layer,
                                     .num_tokens = rows,
                                     .hidden_size = hidden,
                                     .top_k = top_k,
                                     .x = x,
                                     .expert_ids = asked,
                                     .expert_weights = gates,
                                     .y = out});
        ASSERT_TRUE(round->wait().ok());
    };

    const auto one = make_fewer_experts(served_, 1);
    answer(*one, 2, ids, weights, y);
    answer(served_, 1, heaviest, std::vector<float>{1.0f, 0.75f}, wanted);
    EXPECT_EQ(y, wanted);

    // If top_k is larger than the row's number of experts, all of them are requested, the largest
    // weight first.
    const auto many = make_fewer_experts(served_, 9);
    answer(*many, 2, ids, weights, y);
    answer(served_, 2, ids, weights, wanted);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], wanted[i], 1e-5f);
}

// A shadow with the model's own experts chooses the same experts as the model, for every alignment.
TEST_F(ShadowTrialTest, ModelsOwnExpertsAreAPerfectShadow) {
    const auto tokens = test::random_tokens(80, package_->config().vocab_size, 3);
    const std::span<const TokenId> windows[] = {std::span(tokens).first(40),
                                                std::span(tokens).subspan(40)};
    for (const std::uint32_t prompt : {0u, 9u}) {
        ShadowTrial trial(*decoder_, {.windows_max = 2, .num_tokens = 40, .prompt_tokens = prompt});
        ASSERT_TRUE(trial.serve(windows, served_).ok());
        for (const ShadowAlignment alignment :
             {ShadowAlignment{1, 0}, {1, 1}, {1, 5}, {0, 0}, {3, 2}}) {
            if (prompt == 0 && alignment.token_period != 1) continue;
            RecallMeter recall = meter();
            RecallMeter* const meters[] = {&recall};
            ASSERT_TRUE(trial.follow(alignment, served_, meters).ok());
            EXPECT_EQ(recall.recall(0).count(), 2u);
            EXPECT_EQ(recall.recall(0).mean(), 1.0);
            EXPECT_EQ(recall.at_token(0).mean(), 1.0);
            EXPECT_EQ(recall.at_token(39 - prompt).count(), 2u);
            EXPECT_EQ(recall.at_token(40 - prompt).count(), 0u);

            // Times are measured for tokens that are decoded one at a time. If alignment never
            // happens, it takes no time.
            const ShadowTimes& times = trial.times();
            EXPECT_EQ(times.served_ms > 0, prompt > 0);
            EXPECT_EQ(times.shadow_ms > 0, prompt > 0);
            EXPECT_EQ(times.align_ms > 0, prompt > 0 && alignment.kv_period > 0);
        }
    }
}

// A backend that multiplies answers so that they are far too large, because ordinary random experts
// hardly change a random model.
class LoudExperts : public ExpertBackend {
  public:
    explicit LoudExperts(ExpertBackend& experts) : experts_(experts) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        return std::make_unique<Round>(experts_.submit(batch), batch.y);
    }
    const char* name() const override { return "loud"; }

  private:
    struct Round : ExpertRound {
        Round(std::unique_ptr<ExpertRound> of, std::span<float> out)
            : round(std::move(of)),
              y(out) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            auto answer = round->wait(stop);
            for (float& value : y) value *= 64;
            return answer;
        }
        std::unique_ptr<ExpertRound> round;
        std::span<float> y;
    };
    ExpertBackend& experts_;
};

// The reference trial steps one token at a time and rewrites its own cache at each alignment.
TEST_F(ShadowTrialTest, TrialEqualsOneTokenAtATime) {
    const ModelConfig& config = package_->config();
    const auto tokens = test::random_tokens(72, config.vocab_size, 11);
    const std::uint32_t size = 36, prompt = 6;
    ShadowExperts quiet(shadow(ShadowDtype::int2), test::compute_threads());
    LoudExperts experts(quiet);
    ShadowTrial trial(*decoder_, {.windows_max = 2, .num_tokens = size, .prompt_tokens = prompt});
    const std::span<const TokenId> windows[] = {std::span(tokens).first(size),
                                                std::span(tokens).subspan(size)};
    ASSERT_TRUE(trial.serve(windows, served_).ok());

    for (const ShadowAlignment alignment :
         {ShadowAlignment{1, 0}, {1, 1}, {1, 4}, {0, 0}, {0, 1}, {4, 2}}) {
        RecallMeter recall = meter(), wanted = meter();
        RecallMeter* const meters[] = {&recall};
        ASSERT_TRUE(trial.follow(alignment, experts, meters).ok());

        for (std::size_t window = 0; window < 2; ++window) {
            const auto read = trial.tokens(window);
            ASSERT_TRUE(std::ranges::equal(read.first(prompt), windows[window].first(prompt)));
            KvCache cache(config, {16, 6});
            KvCache::Sequence own(cache), model(cache);
            std::vector<std::vector<std::uint16_t>> asked;
            TokenId said = 0;
            const auto step = [&](KvCache::Sequence& kv, ExpertBackend& backend, TokenId token,
                                  const RouteWatch& watch) {
                const StepRows rows{.kv = &kv, .tokens = {&token, 1}};
                const auto result = decoder_->step({&rows, 1}, backend, watch);
                ASSERT_TRUE(result.ok());
                said = static_cast<TokenId>(
                    std::max_element(result->logits.begin(), result->logits.end()) -
                    result->logits.begin());
            };

            for (std::uint32_t position = 0; position < size; ++position) {
                const bool counts = position >= prompt;
                const std::uint32_t token = position - prompt;
                const TokenId own_token = said;
                asked.clear();
                step(model, served_, read[position], [&](const RouteView& route) {
                    asked.emplace_back(route.expert_ids.begin(), route.expert_ids.end());
                });
                if (position + 1 >= prompt && position + 1 < size) {
                    EXPECT_EQ(said, read[position + 1]);
                }

                if (counts && alignment.kv_period > 0 && token % alignment.kv_period == 0)
                    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
                        for (std::uint32_t past = 0; past < position; ++past)
                            own.store(layer, past, model.k(layer, past), model.v(layer, past));
                const bool given = !counts || (alignment.token_period > 0 &&
                                               token % alignment.token_period == 0);
                std::uint32_t layer = 0;
                step(own, experts, given ? read[position] : own_token, [&](const RouteView& route) {
                    if (counts) wanted.record(layer, token, route.router_logits, asked[layer]);
                    ++layer;
                });
            }
            wanted.end_window();
        }
        EXPECT_EQ(recall.recall(0).mean(), wanted.recall(0).mean())
            << alignment.token_period << '/' << alignment.kv_period;
        for (std::uint32_t token = 0; token < size - prompt; ++token)
            EXPECT_EQ(recall.at_token(token).mean(), wanted.at_token(token).mean());
        EXPECT_LT(recall.recall(0).mean(), 1.0);
    }
}

}  // namespace
}  // namespace moex::bench
