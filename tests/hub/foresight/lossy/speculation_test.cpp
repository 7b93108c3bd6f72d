// Rows that take guesses for true: what they ask, when they ask it, and that nobody beside them
// notices.
#include "hub/foresight/lossy/speculation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "hub/engine/perplexity.h"
#include "hub/engine/router.h"
#include "hub/foresight/lossy/loss_trial.h"
#include "hub/foresight/lossy/lost_calls.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

constexpr const char* all_ways[] = {"next-gate", "quasi-hidden",      "estimator",
                                    "hybrid",    "estimator+weights", "quasi-hidden:3",
                                    "early:1",   "router-free",       "estimator+early:1"};

TEST(SpeculationTest, NamesAreReadAndOthersRefused) {
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

TEST(SpeculationTest, WeightsAreTheGuesssOrTheRouters) {
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

    choose({.routes = RouteGuess::next_gate, .true_weights = true});  // the router's 2 and 0
    EXPECT_EQ(ids, (std::vector<std::uint16_t>{2, 0}));
    EXPECT_NEAR(weights[0], e * e / (e * e + 1), 1e-6);

    choose({.routes = RouteGuess::next_gate, .guessed = 3});  // 2 and 1 of 0, 2 and 1
    EXPECT_EQ(ids, (std::vector<std::uint16_t>{2, 1}));
    EXPECT_NEAR(weights[0], e / (e + 1), 1e-6);

    config.norm_topk_prob = false;  // shares of all four
    choose({.routes = RouteGuess::next_gate, .guessed = 3});
    EXPECT_NEAR(weights[0], e * e / (1 + e + e * e + e * e * e), 1e-6);
}

class SpeculatorTest : public testing::Test {
  protected:
    SpeculatorTest()
        : package_(test::tiny_package()),
          experts_(package_, test::compute_threads(), {}, Arithmetic::int8),
          tokens_(test::random_tokens(96, package_->config().vocab_size, 3)),
          cache_(package_->config(), {16, 64, KvDtype::f32}) {
        const ModelConfig& config = package_->config();
        auto decoder = Decoder::create(package_, test::compute_threads());
        auto gates = RouterGates::load(package_, test::compute_threads());
        if (!decoder.ok() || !gates.ok()) throw std::runtime_error("the tiny model does not load");
        decoder_ = std::move(decoder).value();
        sources_.gates = std::make_shared<const RouterGates>(*std::move(gates));
        auto profile = calibrate_experts(*decoder_, experts_, experts_, tokens_,
                                         {.window_tokens = 32}, {});
        if (!profile.ok()) throw std::runtime_error(profile.error().message);
        sources_.profile = std::make_shared<const ExpertProfile>(*std::move(profile));
        sources_.estimator = std::make_shared<const Estimator>(
            EstimatorShape{.hidden_size = config.hidden_size,
                           .num_experts = config.num_experts,
                           .num_targets = 2,
                           .width = 8,
                           .inner = 8},
            5);
        sources_.estimator_layers = {2};
    }

    std::unique_ptr<Speculator> speculator(const char* way) const {
        auto made = Speculator::create(*parse_speculation(way), sources_);
        if (!made.ok()) throw std::runtime_error(made.error().message);
        return std::move(made).value();
    }
    // Logits of each row of tokens [first, first + count) of a fresh sequence, `chunk` at a time.
    std::vector<float> read(ExpertSpeculator* with, std::uint32_t first, std::uint32_t count,
                            std::uint32_t chunk, ExpertBackend* by = nullptr,
                            std::uint32_t parts = 1) {
        KvCache::Sequence kv(cache_);
        std::vector<float> logits;
        for (std::uint32_t at = 0; at < count; at += chunk) {
            const StepRows rows{
                .kv = &kv,
                .tokens = std::span(tokens_).subspan(first + at, std::min(chunk, count - at)),
                .all_logits = true,
                .speculator = with};
            const auto step = decoder_->step({&rows, 1}, by ? *by : experts_, {}, {}, parts);
            if (!step.ok()) throw std::runtime_error(step.error().message);
            logits.insert(logits.end(), step->logits.begin(), step->logits.end());
        }
        return logits;
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts experts_;
    std::vector<TokenId> tokens_;
    KvCache cache_;
    std::unique_ptr<Decoder> decoder_;
    SpeculationSources sources_;
};

TEST_F(SpeculatorTest, RowsKeepTheirBitsBesideOthersOfTheOtherKind) {
    const std::vector<float> exact = read(nullptr, 0, 24, 24);
    for (const std::uint32_t parts : {1u, 3u}) {
        for (const char* way : all_ways) {
            const auto with = speculator(way);
            const std::vector<float> alone = read(with.get(), 24, 24, 24, nullptr, parts);
            EXPECT_NE(alone, read(nullptr, 24, 24, 24)) << way;
            EXPECT_EQ(alone, read(with.get(), 24, 24, 5, nullptr, parts)) << way << " in chunks";

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
            EXPECT_TRUE(std::ranges::equal(logits.first(exact.size()), exact)) << way;
            EXPECT_TRUE(std::ranges::equal(logits.subspan(exact.size()), alone)) << way;
            EXPECT_EQ(both->rows[47].pairs_local, 3u * package_->config().top_k) << way;
        }
    }
}

TEST_F(SpeculatorTest, RowsOfSeveralWaysGoTogetherAndKeepTheirBits) {
    const char* const ways[] = {"router-free", "early:1", "estimator+weights"};
    std::vector<std::unique_ptr<Speculator>> with;
    std::vector<std::unique_ptr<KvCache::Sequence>> sequences;
    std::vector<float> alone = read(nullptr, 0, 16, 16);
    std::vector<StepRows> rows;
    for (std::uint32_t i = 0; i < 4; ++i) {
        if (i > 0) with.push_back(speculator(ways[i - 1]));
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

// Nobody reads the router that is left out.
TEST_F(SpeculatorTest, WithoutRoutersItIsTheEstimatorToTheBit) {
    const auto with = speculator("estimator"), without = speculator("router-free");
    EXPECT_EQ(read(without.get(), 0, 24, 7), read(with.get(), 0, 24, 7));

    std::map<std::uint32_t, std::size_t> logits;  // that a router said, by layer
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

// y = 2 x0 - x1 + 3, of which no ridge that small leaves a tenth; a large one leaves the constant.
TEST(RidgeFitTest, FindsWhatIsLinearAndARidgeShrinksIt) {
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

// On the text it was fitted to it guesses more of the routes than the gate that it corrects.
TEST_F(SpeculatorTest, ALinearEstimatorGuessesBetterThanTheGateThatItCorrects) {
    sources_.linear = std::make_shared<const LinearEstimator>(
        *fit_linear_estimator(*decoder_, experts_, *sources_.gates, *sources_.profile, tokens_,
                              {.window_tokens = 48, .chunk_tokens = 13}));
    ASSERT_EQ(sources_.linear->weights.size(), 2u * 8 * 65);
    const auto linear = speculator("linear:8");
    const auto guessed = speculator("linear"), by_gate = speculator("quasi-hidden");
    EXPECT_EQ(read(linear.get(), 0, 48, 48), read(nullptr, 0, 48, 48));  // all guessed: exact
    read(guessed.get(), 0, 48, 48);
    read(by_gate.get(), 0, 48, 48);
    EXPECT_GT(guessed->hit_rate(1), by_gate->hit_rate(1));
    EXPECT_GT(guessed->hit_rate(2), by_gate->hit_rate(2));
}

// A backend that wants hints, and what it was told before each layer.
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

TEST_F(SpeculatorTest, WhatIsGuessedIsHintedALayerBeforeAndAskedThen) {
    for (const char* way : {"estimator", "hybrid+weights", "router-free"}) {
        Hinted hinted(experts_);
        const auto with = speculator(way);
        read(with.get(), 0, 3, 3, &hinted);
        EXPECT_FALSE(hinted.told.contains(0)) << way;
        for (const std::uint32_t layer : {2u, 3u})
            EXPECT_EQ(hinted.told[layer], hinted.asked[layer]) << way << ", layer " << layer;
    }
    Hinted hinted(experts_);
    const auto with = speculator("quasi-hidden:3");  // more are told than asked
    read(with.get(), 0, 3, 3, &hinted);
    EXPECT_TRUE(std::ranges::includes(hinted.told[3], hinted.asked[3]));
    EXPECT_GT(hinted.told[3].size(), hinted.asked[3].size());

    hinted.told.clear();
    read(speculator("early:1").get(), 0, 3, 3, &hinted);
    EXPECT_TRUE(hinted.told.empty()) << "nobody knows what an early call's router will choose";
}

// Where all experts are guessed, the router chooses as ever.
TEST_F(SpeculatorTest, AllGuessedIsExactToTheBit) {
    const auto with = speculator("next-gate:8");
    EXPECT_EQ(read(with.get(), 0, 24, 7), read(nullptr, 0, 24, 7));
    for (std::uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(with->hit_rate(layer), 1.0);

    const auto worse = speculator("next-gate");
    read(worse.get(), 0, 24, 24);
    EXPECT_EQ(worse->hit_rate(0), 1.0);  // the first layer asks for what its router chose
    EXPECT_LT(worse->hit_rate(2), 1.0);
}

// Stands in for each answer with that answer: nothing is lost but the order of three sums.
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

TEST_F(SpeculatorTest, AnswersThatStandInForThemselvesChangeNothing) {
    const std::vector<float> exact = read(nullptr, 0, 24, 24);
    TrueAnswers answers(experts_);
    const std::vector<float> early = read(&answers, 0, 24, 24);
    for (std::size_t i = 0; i < exact.size(); ++i)
        ASSERT_NEAR(early[i], exact[i], 2e-3f * (1 + std::fabs(exact[i]))) << i;
}

// Which rounds are on their way when one begins.
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

// The tiny model's layer 1 is dense.
TEST_F(SpeculatorTest, EarlyCallsLeaveBeforeTheAnswersBeforeThemAreIn) {
    const auto events_of = [&](const char* way) {
        Log log(experts_);
        const auto with = way ? speculator(way) : nullptr;
        read(with.get(), 0, 4, 4, &log);
        return log.events;
    };
    EXPECT_EQ(events_of(nullptr), "+0-0+2-2+3-3");
    EXPECT_EQ(events_of("estimator"), "+0-0+2-2+3-3");
    EXPECT_EQ(events_of("early:1"), "+0-0+2+3-2-3");
    EXPECT_EQ(events_of("early"), "+0-0+2-2+3-3");  // nothing comes behind the last
    EXPECT_EQ(events_of("router-free+early:1"), "+0-0+2+3-2-3");
}

TEST_F(SpeculatorTest, AStepThatIsStoppedBeginsAgain) {
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

TEST_F(SpeculatorTest, WhatAWayLacksIsNamed) {
    const auto lacks = [&](const char* way, SpeculationSources sources) {
        return Speculator::create(*parse_speculation(way), std::move(sources)).error().message;
    };
    SpeculationSources sources = sources_;
    sources.estimator_layers.clear();
    EXPECT_NE(lacks("hybrid", sources).find("layers"), std::string::npos);
    EXPECT_NE(lacks("linear", sources).find("--calibrate"), std::string::npos);
    sources.estimator = nullptr;
    EXPECT_NE(lacks("estimator", sources).find("train-estimator"), std::string::npos);
    EXPECT_NE(lacks("router-free", sources).find("train-estimator"), std::string::npos);
    sources.profile = nullptr;
    EXPECT_NE(lacks("early", sources).find("--calibrate"), std::string::npos);
    EXPECT_TRUE(Speculator::create(*parse_speculation("next-gate"), sources).ok());
}

TEST_F(SpeculatorTest, ALostCallIsItsExpertsDefaultVector) {
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

// Its first answer of each row is late where that need not wait for it.
class FirstIsLate : public ExpertBackend {
  public:
    explicit FirstIsLate(ExpertBackend& experts) : experts_(experts) {}
    const char* name() const override { return "first-is-late"; }
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        struct Round : ExpertRound {
            Result<ExpertAnswer> wait(std::stop_token stop) override {
                auto answer = inner->wait(std::move(stop));
                if (answer.ok()) answer->late = late;
                return answer;
            }
            std::vector<float> weights;
            std::vector<LatePair> late;
            std::unique_ptr<ExpertRound> inner;
        };
        auto round = std::make_unique<Round>();
        round->weights.assign(batch.expert_weights.begin(), batch.expert_weights.end());
        for (const RowPatience& one : batch.patience) {
            round->weights[one.row * batch.top_k] = 0;
            round->late.push_back({one.row, batch.expert_ids[one.row * batch.top_k]});
        }
        ExpertBatch kept = batch;
        kept.expert_weights = round->weights;
        round->inner = experts_.submit(kept);
        return round;
    }

  private:
    ExpertBackend& experts_;
};

TEST_F(SpeculatorTest, InTheLateAnswersPlaceIsTheDefaultVectorAndOtherRowsKeepTheirBits) {
    FirstIsLate first_is_late(experts_);
    const auto late = make_late_calls(first_is_late, sources_.profile);
    EXPECT_STREQ(late->name(), "first-is-late");
    const std::uint32_t size = package_->config().hidden_size;
    const auto x = test::random_floats(2 * size, 4);
    const std::vector<std::uint16_t> ids{5, 1, 5, 1};
    const std::vector<float> weights{0.75f, 0.25f, 0.75f, 0.25f};
    const auto ask = [&](ExpertBackend& experts, std::span<const float> gates,
                         std::span<const RowPatience> patience) {
        std::vector<float> y(2 * size, 7.0f);
        EXPECT_TRUE(experts
                        .submit({.layer = 2,
                                 .num_tokens = 2,
                                 .hidden_size = size,
                                 .top_k = 2,
                                 .x = x,
                                 .expert_ids = ids,
                                 .expert_weights = gates,
                                 .y = y,
                                 .patience = patience})
                        ->wait()
                        .ok());
        return y;
    };
    const std::vector<float> whole = ask(experts_, weights, {});
    EXPECT_EQ(ask(*late, weights, {}), whole) << "who waits for everything gets it";

    const RowPatience second[] = {{.row = 1, .wait = 1ms, .pairs_max = 1}};
    const std::vector<float> y = ask(*late, weights, second),
                             rest = ask(experts_, std::vector<float>{0.75f, 0.25f, 0, 0.25f}, {});
    for (std::uint32_t i = 0; i < size; ++i) {
        EXPECT_EQ(y[i], whole[i]);
        EXPECT_NEAR(y[size + i], rest[size + i] + 0.75f * sources_.profile->default_vector(2, 5)[i],
                    1e-6f);
    }
}

TEST_F(SpeculatorTest, LossIsZeroForTheModelItselfAndPerplexityTheKnownOne) {
    const auto all = speculator("next-gate:8"), worse = speculator("quasi-hidden");
    const auto lost = make_lost_calls(experts_, sources_.profile, 0.5, 1);
    const LossyWay ways[] = {
        {.speculator = all.get()}, {.speculator = worse.get()}, {.experts = lost.get()}};
    const PerplexityOptions options{.window_tokens = 48};
    const auto losses = measure_loss(*decoder_, experts_, ways, tokens_, options, {});
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
}  // namespace moex
