// Tests the race by which a token is drawn (hub/engine/draw.h): its noise is uniform and
// independent, each token wins with a probability proportional to its weight, and two similar
// distributions often draw the same token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "hub/engine/draw.h"

namespace moex {
namespace {

// Returns Pearson's chi-square statistic of `counts` against equal counts.
double chi_square(const std::vector<int>& counts) {
    double total = 0, sum = 0;
    for (const int count : counts) total += count;
    const double expected = total / static_cast<double>(counts.size());
    for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
    return sum;
}
// a statistic with 255 degrees of freedom exceeds this in 1 of 10,000 cases
constexpr double chi_square_255_max = 347.7;

TEST(DrawRaceTest, NoiseIsUniformOverTokensPositionsChoicesAndSeeds) {
    using Make = std::uint64_t (*)(std::uint32_t);
    const Make kinds[] = {
        [](std::uint32_t i) { return DrawNoise({.seed = 7, .position = 3}).of(i); },
        [](std::uint32_t i) { return DrawNoise({.seed = 7, .position = i}).of(11); },
        [](std::uint32_t i) { return DrawNoise({.seed = 7, .choice = i}).of(11); },
        [](std::uint32_t i) { return DrawNoise({.seed = i}).of(11); }};
    for (const Make make : kinds) {
        std::vector<int> upper(256), lower(256), pairs(256);
        for (std::uint32_t i = 0; i < 50'000; ++i) {
            const std::uint64_t noise = make(i), next = make(i + 1);
            ++upper[noise >> 56];
            ++lower[noise & 255];
            ++pairs[noise >> 60 << 4 | next >> 60];  // neighbours are independent
        }
        EXPECT_LT(chi_square(upper), chi_square_255_max);
        EXPECT_LT(chi_square(lower), chi_square_255_max);
        EXPECT_LT(chi_square(pairs), chi_square_255_max);
    }
}

// All combinations of seed, choice and position have different noise: for example, the second
// choice of a seed is not the first choice of another seed.
TEST(DrawRaceTest, ChoicesAndSeedsHaveNoiseOfTheirOwn) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t seed = 0; seed < 30; ++seed)
        for (std::uint32_t choice = 0; choice < 30; ++choice)
            for (std::uint32_t position = 0; position < 30; ++position)
                seen.insert(DrawNoise({seed, choice, position}).of(5));
    EXPECT_EQ(seen.size(), 27'000u);
}

TEST(DrawRaceTest, ExponentialTimeIsTheLogarithm) {
    std::mt19937_64 random(5);
    for (int i = 0; i < 20'000; ++i) {
        const std::uint64_t noise = random() >> i % 64;
        const double wanted = -std::log2(1 - std::ldexp(static_cast<double>(noise), -64));
        const double time = std::ldexp(static_cast<double>(exponential_time(noise)), -57);
        ASSERT_NEAR(time, wanted, std::max(1e-15, wanted * 1e-13)) << noise;
    }
    EXPECT_EQ(exponential_time(0), 1u);
    EXPECT_EQ(exponential_time(~std::uint64_t{0}), std::uint64_t{64} << 57);
    EXPECT_EQ(exponential_time(std::uint64_t{1} << 63), std::uint64_t{1} << 57);
    for (std::uint64_t noise = 1; noise < 3000; ++noise)
        ASSERT_LE(exponential_time(noise << 40), exponential_time((noise + 1) << 40));
}

// A draw from a list of the likely tokens gives the same token as a draw from the whole vocabulary.
TEST(DrawRaceTest, ListedTokensKeepTheirNoise) {
    std::vector<float> all(1000, -1e30f), listed;
    std::vector<TokenId> ids;
    for (TokenId id = 3; id < 1000; id += 97) {
        all[id] = static_cast<float>(id % 7);
        listed.push_back(all[id]);
        ids.push_back(id);
    }
    for (std::uint32_t position = 0; position < 500; ++position) {
        const DrawPlace place{.seed = 2, .position = position};
        ASSERT_EQ(ids[draw_token(listed, {}, place, ids)], draw_token(all, {}, place));
    }
}

// In a large vocabulary with flat or peaked logits, groups of tokens are drawn as often as their
// weights demand.
TEST(DrawRaceTest, WinnersFollowTheWeightsOfAWideVocabulary) {
    constexpr std::size_t vocab_size = 3'000, num_groups = 256;
    std::mt19937 random(4);
    for (const float spread : {0.0f, 1.0f, 4.0f}) {
        std::normal_distribution<float> normal(0.0f, spread + 1e-9f);
        std::vector<float> logits(vocab_size);
        for (float& logit : logits) logit = normal(random);
        std::vector<double> share(num_groups);
        double sum = 0;
        for (std::size_t id = 0; id < vocab_size; ++id) {
            share[id % num_groups] += std::exp(double{logits[id]});
            sum += std::exp(double{logits[id]});
        }

        constexpr int draws = 20'000;
        std::vector<int> seen(num_groups);
        for (std::uint32_t i = 0; i < draws; ++i)
            ++seen[draw_token(logits, {}, {.seed = 8, .position = i}) % num_groups];
        double statistic = 0;
        for (std::size_t group = 0; group < num_groups; ++group) {
            const double expected = share[group] / sum * draws;
            statistic += (seen[group] - expected) * (seen[group] - expected) / expected;
        }
        EXPECT_LT(statistic, chi_square_255_max) << spread;
    }
}

// A draft model's logits differ from the model's by random errors. A drafted token is accepted if
// both models draw the same token.
TEST(DrawRaceTest, NearDistributionsDrawTheSameToken) {
    std::mt19937 random(6);
    for (const float error : {0.05f, 0.2f, 0.5f, 1.0f}) {
        double bound = 0, variation = 0;
        int same = 0;
        constexpr int draws = 1500;
        for (std::uint32_t i = 0; i < draws; ++i) {
            std::normal_distribution<float> normal(0.0f, 2.5f), off(0.0f, error);
            std::vector<float> target(300), draft(300);
            double target_sum = 0, draft_sum = 0, difference = 0;
            for (std::size_t id = 0; id < target.size(); ++id) {
                target[id] = normal(random);
                draft[id] = target[id] + off(random);
                target_sum += std::exp(double{target[id]});
                draft_sum += std::exp(double{draft[id]});
            }
            for (std::size_t id = 0; id < target.size(); ++id)
                difference += std::abs(std::exp(double{target[id]}) / target_sum -
                                       std::exp(double{draft[id]}) / draft_sum);
            bound += (1 - difference / 2) / (1 + difference / 2) / draws;
            variation += difference / 2 / draws;

            const DrawPlace place{.seed = 1, .position = i};
            same += draw_token(target, {}, place) == draw_token(draft, {}, place);
        }
        const double accepted = static_cast<double>(same) / draws;
        EXPECT_GT(accepted, bound - 0.03) << error;
        EXPECT_LT(accepted, 1 - variation + 0.03) << error << ": no coupling does better";
    }
}

}  // namespace
}  // namespace moex
