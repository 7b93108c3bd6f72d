// Rows of the lossy modes that benches try: the experts that they request, the time of their calls,
// and the bits of exact rows in the same batch.
#include "bench/foresight/speculation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "bench/foresight/loss_trial.h"
#include "bench/foresight/lost_calls.h"
#include "hub/engine/perplexity.h"
#include "hub/engine/router.h"
#include "hub/foresight/lossy/lossy_modes.h"
#include "tests/hub/foresight/lossy/lossy_fixture.h"

namespace moex::bench {
namespace {

constexpr const char* all_modes[] = {"next-gate", "quasi-hidden",      "estimator",
                                     "hybrid",    "estimator+weights", "quasi-hidden:3",
                                     "early:1",   "router-free",       "estimator+early:1"};

TEST(SpeculationTest, KnownNamesAreReadAndOthersRefused) {
    EXPECT_EQ(parse_speculation("estimator")->routes, RouteGuess::estimator);
    EXPECT_TRUE(parse_speculation("next-gate+weights")->true_weights);
    EXPECT_EQ(parse_speculation("quasi-hidden:6")->guessed, 6u);
    EXPECT_EQ(parse_speculation("early")->early_from, 2u);
    EXPECT_EQ(parse_speculation("early:3")->early_from, 3u);
    EXPECT_EQ(parse_speculation("hybrid:6+early")->guessed, 6u);
    EXPECT_EQ(parse_speculation("hybrid:6+early")->early_from, 2u);
    for (const char* name : {"next-gate", "estimator+weights", "hybrid:6", "router-free", "early:1",
                             "quasi-hidden+weights+early:3", "router-free+early:2"})
        EXPECT_EQ(name_of(*parse_speculation(name)), name);
    EXPECT_EQ(name_of(*parse_speculation("early")), "early:2");
    for (const char* wrong :
         {"", "exact", "early+weights", "hybrid:", "hybrid:0", "estimator:x", "estimator:6+weights",
          "quasi-hidden:6:7", "router-free+weights", "router-free:6", "early:1+early:2", "+early:1",
          "estimator+early:0", "estimator+early:1+weights"}) {
        const auto parsed = parse_speculation(wrong);
        ASSERT_FALSE(parsed.ok()) << wrong;
        EXPECT_NE(parsed.error().message.find(text('"', wrong, '"')), std::string::npos);
    }
}

TEST(SpeculationTest, WeightsComeFromTheGuessOrTheRouter) {
    ModelConfig config = test::tiny_config();
    config.num_experts = 4;
    const std::vector<float> guess{2, 0, 1, -1}, router{0, 1, 2, 3};
    std::vector<std::uint16_t> ids(2);
    std::vector<float> weights(2);
    const auto choose = [&](const Speculation& what) {
        choose_guessed(what, config, guess, router, ids, weights);
    };
    const float e = std::exp(1.0f);

    choose({.routes = RouteGuess::next_gate});
    EXPECT_EQ(ids, (std::vector<std::uint16_t>{0, 2}));
    EXPECT_NEAR(weights[0], e / (e + 1), 1e-6);

    // The router itself chooses experts 2 and 0.
    choose({.routes = RouteGuess::next_gate, .true_weights = true});
    EXPECT_EQ(ids, (std::vector<std::uint16_t>{2, 0}));
    EXPECT_NEAR(weights[0], e * e / (e * e + 1), 1e-6);

    // Chooses 2 and 1 among the guessed 0, 2 and 1.
    choose({.routes = RouteGuess::next_gate, .guessed = 3});
    EXPECT_EQ(ids, (std::vector<std::uint16_t>{2, 1}));
    EXPECT_NEAR(weights[0], e / (e + 1), 1e-6);

    config.layers[0].router.is_normalised = false;  // weights are shares among all four experts
    choose({.routes = RouteGuess::next_gate, .guessed = 3});
    EXPECT_NEAR(weights[0], e * e / (1 + e + e * e + e * e * e), 1e-6);
}

class SpeculatorTest : public test::LossyFixture {
  protected:
    SpeculatorTest() : trial_{.package = sources_, .estimator_layers = {2}} {}

    std::unique_ptr<Speculator> speculator(const char* mode) const {
        auto made = Speculator::create(*parse_speculation(mode), trial_);
        if (!made.ok()) throw std::runtime_error(made.error().message);
        return std::move(made).value();
    }

    TrialSources trial_;
};

// The benches have their own implementation of the modes that a hub serves. Both implementations
// give the same bits.
TEST_F(SpeculatorTest, ServedModesHaveTheBitsOfTheTrial) {
    LossyModes served(sources_, {});
    for (const char* mode : {"early:1", "estimator"}) {
        const auto trial = speculator(mode);
        const auto found = served.find(mode);
        ASSERT_TRUE(found.ok()) << found.error().message;
        EXPECT_EQ(read(found->speculator, 0, 24, 7), read(trial.get(), 0, 24, 7)) << mode;
    }
}

TEST_F(SpeculatorTest, RowsKeepTheirBitsBesideRowsOfTheOtherKind) {
    const std::vector<float> exact = read(nullptr, 0, 24, 24);
    for (const std::uint32_t parts : {1u, 3u}) {
        for (const char* mode : all_modes) {
            const auto with = speculator(mode);
            const std::vector<float> alone = read(with.get(), 24, 24, 24, nullptr, parts);
            EXPECT_NE(alone, read(nullptr, 24, 24, 24)) << mode;
            EXPECT_EQ(alone, read(with.get(), 24, 24, 5, nullptr, parts)) << mode << " in chunks";

            KvCache::Sequence first(cache_), second(cache_);
            const StepRows rows[] = {
                {.kv = &first, .tokens = std::span(tokens_).first(24), .all_logits = true},
                {.kv = &second,
                 .tokens = std::span(tokens_).subspan(24, 24),
                 .all_logits = true,
                 .speculator = with.get()}};
            const auto both = decoder_->step(rows, experts_, {}, {}, parts);
            ASSERT_TRUE(both.ok());
            const auto logits = std::span(both->logits);
            EXPECT_TRUE(std::ranges::equal(logits.first(exact.size()), exact)) << mode;
            EXPECT_TRUE(std::ranges::equal(logits.subspan(exact.size()), alone)) << mode;
            EXPECT_EQ(both->rows[47].pairs_local, 3u * package_->config().top_k) << mode;
        }
    }
}

TEST_F(SpeculatorTest, RowsOfSeveralModesShareAStepAndKeepTheirBits) {
    const char* const modes[] = {"router-free", "early:1", "estimator+weights"};
    std::vector<std::unique_ptr<Speculator>> with;
    std::vector<std::unique_ptr<KvCache::Sequence>> sequences;
    std::vector<float> alone = read(nullptr, 0, 16, 16);
    std::vector<StepRows> rows;
    for (std::uint32_t i = 0; i < 4; ++i) {
        if (i > 0) with.push_back(speculator(modes[i - 1]));
        sequences.push_back(std::make_unique<KvCache::Sequence>(cache_));
        rows.push_back({.kv = sequences.back().get(),
                        .tokens = std::span(tokens_).subspan(16 * i, 16),
                        .all_logits = true,
                        .speculator = i > 0 ? with.back().get() : nullptr});
        if (i == 0) continue;
        const std::vector<float> more = read(with.back().get(), 16 * i, 16, 16);
        alone.insert(alone.end(), more.begin(), more.end());
    }
    for (const std::uint32_t parts : {1u, 3u}) {
        const auto together = decoder_->step(rows, experts_, {}, {}, parts);
        ASSERT_TRUE(together.ok());
        EXPECT_EQ(together->logits, alone) << parts;
        for (auto& sequence : sequences) sequence = std::make_unique<KvCache::Sequence>(cache_);
        for (std::size_t i = 0; i < rows.size(); ++i) rows[i].kv = sequences[i].get();
    }
}

// If a layer's router is not computed, the layer reports no router logits.
TEST_F(SpeculatorTest, RouterFreeModeHasTheBitsOfTheEstimator) {
    const auto with = speculator("estimator"), without = speculator("router-free");
    EXPECT_EQ(read(without.get(), 0, 24, 7), read(with.get(), 0, 24, 7));

    // By layer: number of logits that its router reported.
    std::map<std::uint32_t, std::size_t> logits;
    KvCache::Sequence kv(cache_);
    const StepRows rows{
        .kv = &kv, .tokens = std::span(tokens_).first(4), .speculator = without.get()};
    ASSERT_TRUE(decoder_
                    ->step({&rows, 1}, experts_,
                           [&](const RouteView& route) {
                               logits[route.layer] = route.router_logits.size();
                           })
                    .ok());
    const std::size_t all = 4 * package_->config().num_experts;
    EXPECT_EQ(logits, (std::map<std::uint32_t, std::size_t>{{0, all}, {2, 0}, {3, 0}}));
}

// The fitted function is y = 2 x0 - x1 + 3. With a small ridge the fit finds the weights. A large
// ridge does not shrink the constant.
TEST(RidgeFitTest, LinearFunctionIsFoundAndARidgeShrinksIt) {
    RidgeFit fit(2, 1);
    std::vector<float> mean(1);
    for (int i = 0; i < 64; ++i) {
        const float x[] = {static_cast<float>(i % 7) - 3, static_cast<float>(i % 5) - 2};
        const float y[] = {2 * x[0] - x[1] + 3};
        mean[0] += y[0] / 64;
        fit.add(x, y);
    }
    const std::vector<float> close = fit.solve(1e-6), flat = fit.solve(1e6);
    EXPECT_NEAR(close[0], 2, 1e-3);
    EXPECT_NEAR(close[1], -1, 1e-3);
    EXPECT_NEAR(close[2], 3, 1e-3);
    EXPECT_NEAR(flat[0], 0, 1e-3);
    EXPECT_NEAR(flat[2], mean[0], 1e-3);
}

// The recall is measured on the same text that the estimator was fitted to.
TEST_F(SpeculatorTest, LinearEstimatorGuessesBetterThanTheGateThatItCorrects) {
    trial_.linear = std::make_shared<const LinearEstimator>(
        *fit_linear_estimator(*decoder_, experts_, *sources_.gates, *sources_.profile, tokens_,
                              {.window_tokens = 48, .chunk_tokens = 13}));
    ASSERT_EQ(trial_.linear->weights.size(), 2u * 8 * 65);
    const auto linear = speculator("linear:8");
    const auto guessed = speculator("linear"), by_gate = speculator("quasi-hidden");
    EXPECT_EQ(read(linear.get(), 0, 48, 48), read(nullptr, 0, 48, 48));  // all guessed: exact
    read(guessed.get(), 0, 48, 48);
    read(by_gate.get(), 0, 48, 48);
    EXPECT_GT(guessed->hit_rate(1), by_gate->hit_rate(1));
    EXPECT_GT(guessed->hit_rate(2), by_gate->hit_rate(2));
}

// A backend that wants hints. It records, by layer, the hints and the requested experts.
class Hinted : public ExpertBackend {
  public:
    explicit Hinted(ExpertBackend& experts) : experts_(experts) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        asked[batch.layer] = std::set<std::uint16_t>(batch.expert_ids.begin(),
                                                     batch.expert_ids.end());
        return experts_.submit(batch);
    }
    const char* name() const override { return "hinted"; }
    bool wants_hints() const override { return true; }
    void hint(std::span<const ExpertHint> hints) override {
        for (const ExpertHint& one : hints) told[one.layer].insert(one.expert);
    }
    std::map<std::uint32_t, std::set<std::uint16_t>> asked, told;

  private:
    ExpertBackend& experts_;
};

TEST_F(SpeculatorTest, GuessedExpertsAreHintedALayerBeforeAndThenRequested) {
    for (const char* mode : {"estimator", "hybrid+weights", "router-free"}) {
        Hinted hinted(experts_);
        const auto with = speculator(mode);
        read(with.get(), 0, 3, 3, &hinted);
        EXPECT_FALSE(hinted.told.contains(0)) << mode;
        for (const std::uint32_t layer : {2u, 3u})
            EXPECT_EQ(hinted.told[layer], hinted.asked[layer]) << mode << ", layer " << layer;
    }
    Hinted hinted(experts_);
    // A hint has three experts per row, a request has two.
    const auto with = speculator("quasi-hidden:3");
    read(with.get(), 0, 3, 3, &hinted);
    EXPECT_TRUE(std::ranges::includes(hinted.told[3], hinted.asked[3]));
    EXPECT_GT(hinted.told[3].size(), hinted.asked[3].size());

    hinted.told.clear();
    read(speculator("early:1").get(), 0, 3, 3, &hinted);
    EXPECT_TRUE(hinted.told.empty()) << "the router of an early call has not chosen yet";
}

// If all experts are guessed, the router chooses among all experts, as in exact mode.
TEST_F(SpeculatorTest, AllExpertsGuessedIsExactToTheBit) {
    const auto with = speculator("next-gate:8");
    EXPECT_EQ(read(with.get(), 0, 24, 7), read(nullptr, 0, 24, 7));
    for (std::uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(with->hit_rate(layer), 1.0);

    const auto worse = speculator("next-gate");
    read(worse.get(), 0, 24, 24);
    EXPECT_EQ(worse->hit_rate(0), 1.0);  // the first layer always requests what its router chose
    EXPECT_LT(worse->hit_rate(2), 1.0);
}

// A speculator that substitutes each answer by the true answer. Only the order in which three terms
// are added differs.
class TrueAnswers : public ExpertSpeculator {
  public:
    explicit TrueAnswers(ExpertBackend& experts) : experts_(experts) {}
    void choose(const RouteView&, std::span<std::uint16_t>, std::span<float>) override {}
    bool stand_in(const RouteView& asked, std::span<float> y) override {
        return experts_
            .submit({.layer = asked.layer,
                     .num_tokens = asked.num_tokens,
                     .hidden_size = asked.hidden_size,
                     .top_k = asked.top_k,
                     .x = asked.hidden,
                     .expert_ids = asked.expert_ids,
                     .expert_weights = asked.expert_weights,
                     .y = y})
            ->wait()
            .ok();
    }

  private:
    ExpertBackend& experts_;
};

TEST_F(SpeculatorTest, TrueAnswersAsSubstitutesChangeNothing) {
    const std::vector<float> exact = read(nullptr, 0, 24, 24);
    TrueAnswers answers(experts_);
    const std::vector<float> early = read(&answers, 0, 24, 24);
    for (std::size_t i = 0; i < exact.size(); ++i)
        ASSERT_NEAR(early[i], exact[i], 2e-3f * (1 + std::fabs(exact[i]))) << i;
}

// A backend that logs "+layer" when a round of that layer begins, and "-layer" when the decoder
// waits for the round.
class Log : public ExpertBackend {
  public:
    explicit Log(ExpertBackend& experts) : experts_(experts) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        events += text('+', batch.layer);
        return std::make_unique<Round>(experts_.submit(batch), events, batch.layer);
    }
    const char* name() const override { return "log"; }
    std::string events;

  private:
    struct Round : ExpertRound {
        Round(std::unique_ptr<ExpertRound> of, std::string& to, std::uint32_t at)
            : round(std::move(of)),
              events(to),
              layer(at) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            events += text('-', layer);
            return round->wait(std::move(stop));
        }
        std::unique_ptr<ExpertRound> round;
        std::string& events;
        std::uint32_t layer;
    };
    ExpertBackend& experts_;
};

// Layer 1 of the tiny model is dense (it has no experts), so no round begins there.
TEST_F(SpeculatorTest, EarlyCallsLeaveBeforeTheLastAnswersAreIn) {
    const auto events_of = [&](const char* mode) {
        Log log(experts_);
        const auto with = mode ? speculator(mode) : nullptr;
        read(with.get(), 0, 4, 4, &log);
        return log.events;
    };
    EXPECT_EQ(events_of(nullptr), "+0-0+2-2+3-3");
    EXPECT_EQ(events_of("estimator"), "+0-0+2-2+3-3");
    EXPECT_EQ(events_of("early:1"), "+0-0+2+3-2-3");
    // No layer follows the last layer, so its experts are waited for.
    EXPECT_EQ(events_of("early"), "+0-0+2-2+3-3");
    EXPECT_EQ(events_of("router-free+early:1"), "+0-0+2+3-2-3");
}

TEST_F(SpeculatorTest, StoppedStepBeginsAgainWithTheSameBits) {
    const auto with = speculator("estimator");
    const std::vector<float> wanted = read(with.get(), 0, 8, 8);
    KvCache::Sequence kv(cache_);
    const StepRows rows{.kv = &kv,
                        .tokens = std::span(tokens_).first(8),
                        .all_logits = true,
                        .speculator = with.get()};
    std::stop_source stop;
    const auto stopped = decoder_->step(
        {&rows, 1}, experts_,
        [&](const RouteView& route) {
            if (route.layer == 2) stop.request_stop();
        },
        stop.get_token());
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
    const auto again = decoder_->step({&rows, 1}, experts_);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->logits, wanted);
}

TEST_F(SpeculatorTest, MissingSourceIsNamedWithItsCommand) {
    const auto lacks = [&](const char* mode, TrialSources sources) {
        return Speculator::create(*parse_speculation(mode), std::move(sources)).error().message;
    };
    TrialSources sources = trial_;
    sources.estimator_layers.clear();
    EXPECT_NE(lacks("hybrid", sources).find("layers"), std::string::npos);
    EXPECT_NE(lacks("linear", sources).find("--calibrate"), std::string::npos);
    sources.package.estimator = nullptr;
    EXPECT_NE(lacks("estimator", sources).find("train-estimator"), std::string::npos);
    EXPECT_NE(lacks("router-free", sources).find("train-estimator"), std::string::npos);
    sources.package.profile = nullptr;
    EXPECT_NE(lacks("early", sources).find("--calibrate"), std::string::npos);
    EXPECT_TRUE(Speculator::create(*parse_speculation("next-gate"), sources).ok());
}

TEST_F(SpeculatorTest, LostCallGivesItsExpertsDefaultVector) {
    const auto lost = make_lost_calls(experts_, sources_.profile, 1.0, 1);
    const std::uint32_t size = package_->config().hidden_size;
    const auto x = test::random_floats(size, 4);
    const std::vector<std::uint16_t> ids{5, 1};
    const std::vector<float> weights{0.75f, 0.25f};
    std::vector<float> y(size, 7.0f);
    ASSERT_TRUE(lost->submit({.layer = 2,
                              .num_tokens = 1,
                              .hidden_size = size,
                              .top_k = 2,
                              .x = x,
                              .expert_ids = ids,
                              .expert_weights = weights,
                              .y = y})
                    ->wait()
                    .ok());
    for (std::uint32_t i = 0; i < size; ++i)
        EXPECT_NEAR(y[i],
                    0.75f * sources_.profile->default_vector(2, 5)[i] +
                        0.25f * sources_.profile->default_vector(2, 1)[i],
                    1e-6f);
}

TEST_F(SpeculatorTest, LossOfTheExactModelIsZero) {
    const auto all = speculator("next-gate:8"), worse = speculator("quasi-hidden");
    const auto lost = make_lost_calls(experts_, sources_.profile, 0.5, 1);
    const LossyMode modes[] = {
        {.speculator = all.get()}, {.speculator = worse.get()}, {.experts = lost.get()}};
    const PerplexityOptions options{.window_tokens = 48};
    const auto losses = measure_loss(*decoder_, experts_, modes, tokens_, options, {});
    ASSERT_TRUE(losses.ok()) << losses.error().message;
    ASSERT_EQ(losses->size(), 4u);
    const auto known = measure_perplexity(*decoder_, experts_, tokens_, options, {});
    ASSERT_TRUE(known.ok());
    EXPECT_NEAR((*losses)[0].perplexity.perplexity, known->perplexity, 1e-3 * known->perplexity);

    for (const std::size_t exact : {0u, 1u}) {
        EXPECT_EQ((*losses)[exact].same_first, known->num_predictions);
        EXPECT_NEAR((*losses)[exact].mean_kl, 0, 1e-9);
        EXPECT_EQ((*losses)[exact].nll_excess.mean(), 0);
        EXPECT_EQ((*losses)[exact].nll_excess.count(), 2u);
    }
    for (const std::size_t lossy : {2u, 3u}) {
        EXPECT_GT((*losses)[lossy].mean_kl, 0);
        EXPECT_NEAR((*losses)[lossy].perplexity.mean_nll - (*losses)[0].perplexity.mean_nll,
                    (*losses)[lossy].nll_excess.mean(), 1e-9);
    }
}

}  // namespace
}  // namespace moex::bench
