#include "hub/engine/sampler.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "hub/engine/kernels.h"
#include "hub/engine/scores.h"

namespace moex {
namespace {

// Draws `count` tokens from fixed logits and returns how often each was drawn.
std::vector<int> draw_many(const std::vector<float>& logits, SamplingOptions options, int count) {
    Sampler sampler(std::move(options), {});
    std::vector<int> seen(logits.size(), 0);
    for (int i = 0; i < count; ++i) {
        const TokenId id = sampler.choose(logits);
        ++seen[id];
        sampler.accept(id);  // the next draw is at the next position
    }
    return seen;
}
// Returns Pearson's chi-square statistic of the drawn counts against the expected distribution;
// tokens of probability 0 must not occur.
double chi_square(const std::vector<int>& seen, const std::vector<double>& wanted, int count) {
    double sum = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
        if (wanted[i] == 0) {
            EXPECT_EQ(seen[i], 0) << "token " << i << " was cut";
            continue;
        }
        const double expected = wanted[i] * count;
        sum += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    return sum;
}
std::vector<double> normalized(std::vector<double> values) {
    double sum = 0;
    for (const double value : values) sum += value;
    for (double& value : values) value /= sum;
    return values;
}
std::vector<float> logs(const std::vector<double>& probabilities) {
    std::vector<float> out;
    for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
    return out;
}

constexpr int draws = 20000;
// A statistic with 6 degrees of freedom, the most in these tests, stays below this value in 99.9 %
// of cases. Since the seeds are fixed, the outcome never changes.
constexpr double chi_square_99_9 = 22.46;
const std::vector<double> base{0.30, 0.05, 0.20, 0.10, 0.25, 0.07, 0.03};

TEST(SamplerTest, NanLogitsDoNotCrash) {
    const std::vector<float> logits(8, std::numeric_limits<float>::quiet_NaN());
    Sampler sampler({.temperature = 1, .top_p = 0.9, .seed = 1}, {});
    const SampledToken token = sample(sampler, logits, 0);
    EXPECT_LT(token.id, 8u);
    EXPECT_FALSE(std::isfinite(token.logprob));
}

TEST(SamplerTest, GreedyTakesTheLowerIdOfATie) {
    Sampler sampler({.temperature = 0}, {});
    const std::vector<float> logits{1.0f, 3.0f, 3.0f, -1.0f};
    EXPECT_EQ(sampler.choose(logits), 1u);
}

TEST(SamplerTest, SameSeedGivesSameTokens) {
    const auto run = [&](std::uint64_t seed) {
        Sampler sampler({.temperature = 1.0, .seed = seed}, {});
        std::vector<TokenId> ids;
        for (int i = 0; i < 64; ++i) {
            ids.push_back(sampler.choose(logs(base)));
            sampler.accept(ids.back());
        }
        return ids;
    };
    EXPECT_EQ(run(1), run(1));
    EXPECT_NE(run(1), run(2));
    // The test contains the first tokens of one seed, so that it fails if the noise changes.
    Sampler sampler({.temperature = 1.0, .seed = 42}, std::vector<TokenId>{1, 2, 3});
    std::string ids;
    for (int i = 0; i < 24; ++i) {
        const TokenId id = sampler.choose(logs(base));
        ids += std::to_string(id);
        sampler.accept(id);
    }
    EXPECT_EQ(ids, "430232022416604014432540");
}

// Simulates a device that finds the likeliest tokens itself: it returns these tokens and the
// logarithm of the sum of exp() over all logits.
LikeliestTokens likeliest_of(std::span<const float> logits, std::size_t count) {
    std::vector<TokenLogit> tokens;
    for (TokenId id = 0; id < logits.size(); ++id) tokens.push_back({id, logits[id]});
    std::stable_sort(tokens.begin(), tokens.end(),
                     [](const TokenLogit& a, const TokenLogit& b) { return a.logit > b.logit; });
    tokens.resize(count);
    return {std::move(tokens), log_sum_exp(logits)};
}

TEST(SamplerTest, TheLikeliestTokensGiveWhatAllLogitsGive) {
    const SamplingOptions kinds[] = {
        {.temperature = 0},
        {.temperature = 0.7, .sample_top_k = 20},
        {.temperature = 1.0, .top_p = 0.6, .sample_top_k = 50},
        {.temperature = 1.6, .sample_top_k = 64, .min_p = 0.2},
        {.temperature = 1.2, .top_p = 0.9, .sample_top_k = 7, .min_p = 0.01}};
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 3);
    for (SamplingOptions options : kinds)
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
            options.seed = seed;
            Sampler by_all(options, {}), by_few(options, {});
            ASSERT_GT(by_few.num_likeliest(), 0u);
            for (int draw = 0; draw < 4; ++draw) {
                std::vector<float> logits(500);
                for (float& logit : logits) logit = std::round(normal(random) * 4) / 4;  // ties
                const SampledToken wanted = sample(by_all, logits, 0),
                                   mine = sample(by_few, likeliest_of(logits, 64));
                EXPECT_EQ(mine.id, wanted.id);
                EXPECT_EQ(mine.logprob, wanted.logprob);
                by_all.accept(wanted.id);
                by_few.accept(mine.id);
            }
        }
}

TEST(SamplerTest, OptionsBeyondTheLikeliestNeedAllLogits) {
    for (const SamplingOptions& options :
         {SamplingOptions{.top_p = 0.9}, SamplingOptions{.min_p = 0.1},
          SamplingOptions{.sample_top_k = 5, .repetition_penalty = 1.1},
          SamplingOptions{.temperature = 0, .presence_penalty = 0.5},
          SamplingOptions{.temperature = 0, .logit_bias = {{3, 1.0f}}}})
        EXPECT_EQ(Sampler(options, {}).num_likeliest(), 0u);
}

TEST(SamplerTest, DrawsFollowTheDistribution) {
    EXPECT_LT(
        chi_square(draw_many(logs(base), {.temperature = 1.0, .seed = 3}, draws), base, draws),
        chi_square_99_9);
    std::vector<double> cool;
    for (const double p : base) cool.push_back(std::pow(p, 2.0));
    EXPECT_LT(chi_square(draw_many(logs(base), {.temperature = 0.5, .seed = 4}, draws),
                         normalized(cool), draws),
              chi_square_99_9);
}

TEST(SamplerTest, TopKTopPAndMinPCutTheTail) {
    EXPECT_LT(chi_square(draw_many(logs(base), {.sample_top_k = 3, .seed = 5}, draws),
                         normalized({0.30, 0, 0.20, 0, 0.25, 0, 0}), draws),
              chi_square_99_9);

    // With a top_p of 0.7 three tokens are kept, the fewest that reach this share: 0.30 + 0.25 <
    // 0.7 <= 0.30 + 0.25 + 0.20.
    EXPECT_LT(chi_square(draw_many(logs(base), {.top_p = 0.7, .seed = 6}, draws),
                         normalized({0.30, 0, 0.20, 0, 0.25, 0, 0}), draws),
              chi_square_99_9);

    // With a min_p of 0.2 tokens are kept from a probability of 0.06 on, which is 0.2 of the
    // largest probability.
    EXPECT_LT(chi_square(draw_many(logs(base), {.min_p = 0.2, .seed = 7}, draws),
                         normalized({0.30, 0, 0.20, 0.10, 0.25, 0.07, 0}), draws),
              chi_square_99_9);

    const auto seen = draw_many(logs(base), {.top_p = 1e-9, .seed = 8}, 100);
    EXPECT_EQ(seen[0], 100);  // every cut keeps at least one token
}

// The vocabulary has more candidates than the sampler sorts at first. The kept tokens are the same
// as after a full sort.
TEST(SamplerTest, TopPOfAWideVocabularyKeepsTheFewest) {
    constexpr std::size_t vocab_size = 5000, likely = 600;
    constexpr double top_p = 0.9;
    std::vector<float> logits(vocab_size);
    for (std::size_t i = 0; i < vocab_size; ++i)
        logits[i * 7 % vocab_size] = i < likely ? 5.0f + 0.001f * static_cast<float>(i % 97) : 0.0f;
    std::vector<std::size_t> order(vocab_size);

    for (std::size_t i = 0; i < vocab_size; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    double sum = 0, reached = 0;
    for (const float logit : logits) sum += std::exp(logit);
    std::size_t kept = 0;
    std::vector<double> wanted(vocab_size, 0.0);

    while (reached < top_p * sum) {
        wanted[order[kept]] = std::exp(logits[order[kept]]);
        reached += wanted[order[kept++]];
    }
    ASSERT_GT(kept, 500u);

    const auto seen = draw_many(logits, {.top_p = top_p, .seed = 9}, draws);
    for (std::size_t i = 0; i < vocab_size; ++i)
        EXPECT_EQ(seen[i] > 0, wanted[i] > 0) << "token " << i;
}

TEST(SamplerTest, PenaltiesAreThoseOfCtrlAndOpenAi) {
    const std::vector<float> logits{2.0f, 1.9f, -1.0f, -1.1f};
    // The repetition penalty divides positive logits and multiplies negative logits, also for
    // tokens of the prompt.
    {
        const std::vector<TokenId> prompt{0, 0};
        Sampler sampler({.temperature = 0, .repetition_penalty = 1.1}, prompt);
        // 2.0 / 1.1 < 1.9: the logit is divided once, however often the token occurred
        EXPECT_EQ(sampler.choose(logits), 1u);
        sampler.accept(1);
        EXPECT_EQ(sampler.choose(logits), 0u);  // 1.9 / 1.1 < 2.0 / 1.1
        Sampler negative({.temperature = 0, .repetition_penalty = 1.2}, std::vector<TokenId>{0});
        const std::vector<float> below{-1.0f, -1.1f};
        EXPECT_EQ(negative.choose(below), 1u);
    }
    {  // The presence penalty is subtracted once, and only for tokens of the output.
        const std::vector<TokenId> prompt{0};
        Sampler sampler({.temperature = 0, .presence_penalty = 0.15}, prompt);
        EXPECT_EQ(sampler.choose(logits), 0u);
        sampler.accept(0);
        EXPECT_EQ(sampler.choose(logits), 1u);
        sampler.accept(1);
        sampler.accept(0);
        EXPECT_EQ(sampler.choose(logits), 0u);
    }
    {  // The frequency penalty is subtracted for each occurrence of a token in the output.
        Sampler sampler({.temperature = 0, .frequency_penalty = 0.06}, {});
        sampler.accept(0);
        EXPECT_EQ(sampler.choose(logits), 0u);
        sampler.accept(0);
        EXPECT_EQ(sampler.choose(logits), 1u);
    }
    Sampler biased({.temperature = 0, .logit_bias = {{3, 100.0f}, {0, -100.0f}}}, {});
    EXPECT_EQ(biased.choose(logits), 3u);
}

TEST(SamplerTest, LogprobsAreTheModelsOwn) {
    Sampler sampler({.temperature = 0, .logit_bias = {{2, 100.0f}}}, {});
    const auto sampled = sample(sampler, logs(base), 3);
    EXPECT_EQ(sampled.id, 2u);
    EXPECT_NEAR(sampled.logprob, std::log(0.20), 1e-5);
    ASSERT_EQ(sampled.top.size(), 3u);
    EXPECT_EQ(sampled.top[0].id, 0u);
    EXPECT_EQ(sampled.top[1].id, 4u);
    EXPECT_EQ(sampled.top[2].id, 2u);
    EXPECT_NEAR(sampled.top[0].logprob, std::log(0.30), 1e-5);
    EXPECT_EQ(sample(sampler, logs(base), 100).top.size(), base.size());
}

// Allows a fixed set of tokens, and records the arguments of its calls.
class FixedMask : public TokenMask {
  public:
    explicit FixedMask(std::uint64_t bits) : bits_{bits} {}
    std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                           std::uint32_t tokens_left) override {
        said = static_cast<std::uint32_t>(answer.size());
        left = tokens_left;
        return bits_;
    }
    std::uint32_t said = 0, left = 0;

  private:
    std::vector<std::uint64_t> bits_;
};

TEST(SamplerTest, AMaskThatAllowsEverythingChangesNoToken) {
    Sampler free({.temperature = 1, .top_p = 0.9, .seed = 7}, {});
    Sampler masked(
        {.temperature = 1, .top_p = 0.9, .seed = 7, .mask = std::make_shared<FixedMask>(0x7f)}, {});
    for (int i = 0; i < 500; ++i) {
        const SampledToken a = sample(free, logs(base), 2), b = sample(masked, logs(base), 2);
        ASSERT_EQ(a.id, b.id);
        ASSERT_EQ(a.logprob, b.logprob);
        free.accept(a.id);
        masked.accept(b.id);
    }
}

TEST(SamplerTest, TheMaskHasTheLastWord) {
    const auto mask = std::make_shared<FixedMask>(0b1000010);
    Sampler sampler({.temperature = 1, .logit_bias = {{2, 100.0f}}, .seed = 3, .mask = mask}, {},
                    9);
    for (int i = 0; i < 200; ++i) {
        const TokenId id = sampler.choose(logs(base));
        EXPECT_TRUE(id == 1 || id == 6) << id;
    }
    EXPECT_EQ(mask->left, 9u);
    sampler.accept(1);
    const SampledToken next = sample(sampler, logs(base), 1);
    EXPECT_EQ(mask->said, 1u);
    EXPECT_EQ(mask->left, 8u);
    EXPECT_EQ(next.top[0].id, 0u) << "the model's own";
    EXPECT_NEAR(next.logprob, std::log(base[next.id]), 1e-5);
}

}  // namespace
}  // namespace moex
