// Compares the computed times of a round and of a token with closed forms, with random draws and
// with the numbers in the paper.
#include "hub/foresight/cost/token_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace moex {
namespace {

constexpr AnswerTime paper{.median_ms = 20, .sigma = 0.5};

TEST(RoundTimeTest, OneAnswerHasTheMeanOfItsClosedForm) {
    for (const double sigma : {0.01, 0.5, 1.0, 2.0}) {
        const AnswerTime time{.median_ms = 20, .sigma = sigma};
        EXPECT_NEAR(slowest_ms(time, 1, 1) / mean_ms(time), 1, 1e-9) << sigma;
    }
    EXPECT_EQ(slowest_ms({.median_ms = 7, .sigma = 0}, 8, 2), 7);
}

// For two independent answer times T: E[max of two] = 2 E[T] Phi(sigma / sqrt 2); E[min of two] = 2
// E[T] - E[max of two].
TEST(RoundTimeTest, TwoAnswersHaveTheMeansOfTheirClosedForms) {
    for (const double sigma : {0.1, 0.5, 1.5}) {
        const AnswerTime time{.median_ms = 3, .sigma = sigma};
        const double slower = 2 * mean_ms(time) * normal_cdf(sigma / std::sqrt(2.0));
        EXPECT_NEAR(slowest_ms(time, 2, 1) / slower, 1, 1e-9) << sigma;
        EXPECT_NEAR(slowest_ms(time, 1, 2) / (2 * mean_ms(time) - slower), 1, 1e-9) << sigma;
    }
}

// The paper prints 51.2, 28.7, 23.1 and 20.4 ms; moex_tables.mjs computes the same numbers by
// integration.
TEST(RoundTimeTest, EightCallsWithCopiesMatchTheIntegral) {
    const double wanted[] = {42.77881, 27.57303, 22.37538, 19.61495};
    for (int copies = 1; copies <= 4; ++copies)
        EXPECT_NEAR(slowest_ms(paper, 8, copies), wanted[copies - 1], 1e-4) << copies;
}

TEST(RoundTimeTest, EqualWorkersThatAreAlwaysRequestedAreEqualCalls) {
    const std::vector<AskedWorker> eight(8, {.time = paper, .share = 1});
    EXPECT_NEAR(round_ms(eight), slowest_ms(paper, 8, 1), 1e-6);
    // With two copies of each call, requests to all eight workers are four calls.
    EXPECT_NEAR(round_ms(eight, 2), slowest_ms(paper, 4, 2), 1e-6);
}

// Drafts are accepted one after the other until the first rejection, and the target's own token
// follows.
TEST(TokenTimeTest, TokensOfAStepMatchRandomDraws) {
    EXPECT_EQ(tokens_per_step(0.5, 0), 1);
    EXPECT_EQ(tokens_per_step(0, 4), 1);
    EXPECT_EQ(tokens_per_step(1, 4), 5);
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform;
    constexpr int num_steps = 200'000;
    for (const double acceptance : {0.3, 0.8, 0.95}) {
        double tokens = 0;
        for (int step = 0; step < num_steps; ++step) {
            int accepted = 0;
            while (accepted < 5 && uniform(random) < acceptance) ++accepted;
            tokens += accepted + 1;
        }
        EXPECT_NEAR(tokens / num_steps / tokens_per_step(acceptance, 5), 1, 0.01) << acceptance;
    }
}

// A random draw without a requested worker is not a round, so a worker's share refers to the
// remaining draws.
TEST(RoundTimeTest, DifferentWorkersMatchRandomDraws) {
    std::vector<AskedWorker> workers{{.time = {.median_ms = 2, .sigma = 0.2}, .share = 0.7},
                                     {.time = {.median_ms = 5, .sigma = 0.6}, .share = 0.3},
                                     {.time = {.median_ms = 3, .sigma = 0}, .share = 0.5}};
    const std::vector<AskedWorker> drawn = workers;
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    double sum = 0;
    int rounds = 0;
    std::vector<int> asked(workers.size());
    while (rounds < 400'000) {
        double slowest = 0;
        for (std::size_t i = 0; i < drawn.size(); ++i) {
            const auto& [time, share] = drawn[i];
            if (uniform(random) >= share) continue;
            ++asked[i];
            slowest = std::max(slowest, time.median_ms * std::exp(time.sigma * normal(random)));
        }
        if (slowest == 0) continue;
        ++rounds;
        sum += slowest;
    }
    for (std::size_t i = 0; i < workers.size(); ++i)
        workers[i].share = static_cast<double>(asked[i]) / rounds;
    EXPECT_NEAR(round_ms(workers), sum / rounds, 0.02);
    EXPECT_EQ(round_ms({}), 0);
}

TEST(RoundTimeTest, RoundOfASingleWorkerTakesTheMeanOfAll) {
    const std::vector<AskedWorker> four(4, {.time = {.median_ms = 40, .sigma = 0}, .share = 0.25});
    EXPECT_NEAR(round_ms(four), 40, 0.01);
    const std::vector<AskedWorker> two{{.time = paper, .share = 0.75},
                                       {.time = {.median_ms = 5, .sigma = 0.5}, .share = 0.25}};
    const double mean = 0.75 * mean_ms(paper) + 0.25 * mean_ms(two[1].time);
    EXPECT_NEAR(round_ms(two) / mean, 1, 1e-3);
}

TEST(RoundTimeTest, HubMeasurementsBecomeAnAnswerTime) {
    const AnswerTime time = answer_time_of(mean_ms(paper), 20, 20 * std::exp(0.5 * 2.32635));
    EXPECT_NEAR(time.sigma, paper.sigma, 1e-5);
    EXPECT_NEAR(time.median_ms, paper.median_ms, 1e-3);
    EXPECT_EQ(answer_time_of(4, 5, 5).sigma, 0);
    EXPECT_EQ(answer_time_of(0, 0, 0).median_ms, 0);
}

TEST(TokenTimeTest, WorkerHoldsTheBytesOfItsShare) {
    EXPECT_NEAR(worker_bytes({}, 4.25, 2, 16) / 1e9, 1.925, 0.001);
    const RoundShape printed{
        .num_moe_layers = 46, .hidden_size = 4096, .moe_intermediate_size = 2048};
    EXPECT_NEAR(worker_bytes(printed, 4, 2, 16) / 1e9, 9.26, 0.005);
}

// The paper prints 163, 307, 1075 and 4915, because it counts each round trip twice.
TEST(TokenTimeTest, TokenHasOneRoundTripPerLayer) {
    const double rtt_ms[] = {0.5, 2, 10, 50}, wanted[] = {139.2, 211.2, 595.2, 2515.2};
    for (int i = 0; i < 4; ++i) {
        const LayerTimes times{.readback_ms = 0.2, .rtt_ms = rtt_ms[i], .expert_ms = 0.7};
        EXPECT_NEAR(pass_ms({}, times, 1, 1, 16, Stalls::calls), wanted[i], 1e-9);
    }
}

TEST(TokenTimeTest, BytesAndRowsTakeTheirTime) {
    LayerTimes times{.rtt_ms = 2, .expert_ms = 1, .mbit_s = 100};
    // The expected time is that of 16 frames of 4,124 bytes in each direction over 100 Mbit/s.
    EXPECT_NEAR(dispatch_ms({}, times, 1, 2, 16, Stalls::calls), 3 + 32 * 4124 * 8 / 1e5, 1e-9);
    times = {.rtt_ms = 2, .expert_ms = 1, .hub_row_ms = 0.5, .expert_row_ms = 0.25};
    EXPECT_NEAR(pass_ms({}, times, 5, 1, 16, Stalls::calls), 48 * (1.5 + 2 + 2 + 1 + 1), 1e-9);
}

// Four spans of a model of 48 layers, three of which stay with the hub: seven trips instead of 48.
TEST(TokenTimeTest, SpanHasOneRoundTripForItsLayers) {
    LayerTimes times{.hub_ms = 1, .rtt_ms = 20, .expert_ms = 0.5};
    EXPECT_NEAR(spans_ms({}, times, 1, 4, 3, 16), 48 * 1.5 + 7 * 20, 1e-9);
    EXPECT_NEAR(pass_ms({}, times, 1, 1, 16, Stalls::workers), 48 * 1.5 + 48 * 20, 1e-9);
    // 8,192 bytes each way over 100 Mbit/s, and four more rows
    times = {.hub_ms = 1, .expert_ms = 0.5, .hub_row_ms = 0.25, .mbit_s = 100};
    EXPECT_NEAR(spans_ms({}, times, 5, 2, 0, 16), 48 * 2.5 + 2 * 5 * 2 * 8192 * 8 / 1e5, 1e-9);
}

TEST(TokenTimeTest, ManyRowsRequestMoreExperts) {
    EXPECT_NEAR(experts_asked({}, 1), 8, 1e-9);
    EXPECT_NEAR(experts_asked({}, 16), 128 * (1 - std::pow(120.0 / 128, 16)), 1e-9);
    const LayerTimes times{.rtt_ms = 20, .sigma = 0.5};
    EXPECT_GT(dispatch_ms({}, times, 16, 1, 16, Stalls::calls),
              dispatch_ms({}, times, 1, 1, 16, Stalls::calls));
}

TEST(TokenTimeTest, WorkersThatStallAsOneAreFewerThanCalls) {
    EXPECT_NEAR(workers_asked(8, 2), 2 * (1 - std::pow(0.5, 8)), 1e-12);
    EXPECT_EQ(workers_asked(8, 1), 1);
    const LayerTimes times{.rtt_ms = 20, .sigma = 0.5};
    EXPECT_NEAR(dispatch_ms({}, times, 1, 1, 1, Stalls::workers), mean_ms(paper), 1e-6);
    EXPECT_LT(dispatch_ms({}, times, 1, 1, 16, Stalls::workers),
              dispatch_ms({}, times, 1, 1, 16, Stalls::calls));
}

TEST(TokenTimeTest, ForecastIsHubTimePlusRounds) {
    const HubFigures figures{.steps = 10,
                             .rows = 10,
                             .rounds = 80,
                             .step_s = 0.5,
                             .waited_s = 0.3,
                             .workers = {{.time = {.median_ms = 4, .sigma = 0}, .share = 1}}};
    const StepForecast said = forecast(figures);
    EXPECT_NEAR(said.hub_ms, 20, 1e-9);
    EXPECT_NEAR(said.round_ms, 4, 1e-4);
    EXPECT_NEAR(said.step_ms, 52, 1e-3);
    EXPECT_NEAR(said.measured_ms, 50, 1e-9);
    EXPECT_NEAR(said.deviation(), 0.04, 1e-4);
}

}  // namespace
}  // namespace moex
