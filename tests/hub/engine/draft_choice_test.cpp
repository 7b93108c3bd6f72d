// Tests the n-gram source, the learned rates and the choice of the number of drafted rows.
#include <random>

#include <gtest/gtest.h>

#include "hub/draft/ngram_draft.h"
#include "hub/engine/draft_budget.h"
#include "hub/engine/draft_rates.h"

namespace moex {
namespace {

std::vector<TokenId> propose(NgramDrafts& source, Draft& draft, const std::vector<TokenId>& tokens,
                             std::uint32_t most, std::uint32_t* proposal_class = nullptr) {
    DraftCall call{.draft = &draft, .tokens = tokens, .tokens_max = most};
    source.propose({&call, 1});
    if (proposal_class) *proposal_class = call.proposal_class;
    return call.proposed;
}

TEST(NgramDraftsTest, ProposesWhatFollowedTheLongestRepetition) {
    NgramDrafts source;
    const auto draft = source.begin({});
    std::uint32_t of = 9;
    EXPECT_EQ(propose(source, *draft, {1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3}, 3, &of),
              (std::vector<TokenId>{4, 5, 9}));
    EXPECT_EQ(of, 1u);  // a repetition of three tokens
    const auto later = source.begin({});
    EXPECT_EQ(propose(source, *later, {1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 6, 2, 3}, 3, &of),
              (std::vector<TokenId>{7, 8, 6}));  // of equally long ones the latest
    EXPECT_EQ(of, 0u);
}

TEST(NgramDraftsTest, ProposesNothingWithoutARepetitionAndNeverReadsPastTheEnd) {
    NgramDrafts source;
    for (const std::vector<TokenId>& tokens :
         {std::vector<TokenId>{}, {1}, {1, 1}, {1, 2}, {1, 2, 3, 4, 5, 2}}) {
        const auto draft = source.begin({});
        EXPECT_TRUE(propose(source, *draft, tokens, 4).empty());
    }
    const auto draft = source.begin({});
    EXPECT_EQ(propose(source, *draft, {5, 5, 5}, 4), (std::vector<TokenId>{5, 5, 5, 5}));
    const auto pair = source.begin({});
    EXPECT_EQ(propose(source, *pair, {1, 2, 1, 2}, 5), (std::vector<TokenId>{1, 2, 1, 2, 1}));
}

// The plain twin compares every earlier position.
TEST(NgramDraftsTest, GrowingTextsGiveTheProposalsOfAPlainSearch) {
    std::mt19937 random(3);
    NgramDrafts source;
    for (int text = 0; text < 50; ++text) {
        const auto draft = source.begin({});
        std::vector<TokenId> tokens;
        while (tokens.size() < 60) {
            for (std::uint32_t more = 1 + random() % 3; more > 0; --more)
                tokens.push_back(random() % 6);
            std::size_t best = 0, best_end = 0;
            int tries = 16;  // the latest occurrences of the last pair
            for (std::size_t end = tokens.size() - 1; end-- > 1 && tries > 0;) {
                std::size_t length = 0;
                while (length <= end && length < 32 &&
                       tokens[end - length] == tokens[tokens.size() - 1 - length])
                    ++length;
                if (length < 2) continue;
                --tries;
                if (length > best) best = length, best_end = end;
            }
            const auto proposed = propose(source, *draft, tokens, 4);
            ASSERT_EQ(proposed.empty(), best < 2);
            for (std::size_t i = 0; i < proposed.size(); ++i)
                ASSERT_EQ(proposed[i], tokens[best_end + 1 + i % (tokens.size() - 1 - best_end)]);
        }
    }
}

TEST(DraftRatesTest, RatesFollowWhatWasObserved) {
    DraftRates all(256), own(32);
    EXPECT_NEAR(all.rate(0, 0), 0.5, 1e-9);
    const std::vector<TokenId> proposed{1, 2, 3}, right{1, 2, 3, 4}, half{1, 9}, wrong{9};
    for (int i = 0; i < 400; ++i) all.record(2, proposed, i % 2 == 0 ? right : half);
    EXPECT_NEAR(all.rate(2, 0), 1.0, 0.02);
    EXPECT_NEAR(all.rate(2, 1), 0.5, 0.03);
    EXPECT_NEAR(all.rate(2, 2), 1.0, 0.03);
    EXPECT_NEAR(all.rate(3, 0), 0.5, 1e-9);  // no proposal of class 3 was recorded
    EXPECT_NEAR(own.rate(2, 0, all), all.rate(2, 0), 1e-9);
    for (int i = 0; i < 100; ++i) own.record(2, proposed, wrong);
    EXPECT_LT(own.rate(2, 0, all), 0.15);
}

// Runs steps whose duration is `plain` and `row` for each drafted row, and returns the mean number
// of drafted rows and the tokens a ms, by the gains.
struct Speed {
    double rows = 0, speed = 0;
};
Speed run_steps(double plain, double row, std::uint32_t sequences, double accept, int steps,
                double noise = 0) {
    DraftBudget budget;
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    std::vector<double> gains;
    for (std::uint32_t i = 1; i <= 8; ++i)
        gains.insert(gains.end(), sequences, std::pow(accept, i));
    double rows = 0, tokens = 0, time = 0;
    for (int i = 0; i < steps; ++i) {
        const std::uint32_t k = budget.choose(sequences, gains);
        const double ms = (plain + row * k) * std::exp(noise * normal(random));
        budget.record(
            sequences, k,
            std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms)));
        rows += k;
        tokens += sequences;
        for (std::uint32_t j = 0; j < k; ++j) tokens += gains[j];
        time += plain + row * k;
    }
    return {rows / steps, tokens / time};
}

TEST(DraftBudgetTest, RowsThatAreFreeAreUsedAndRowsThatDoNotPayAreNot) {
    EXPECT_GT(run_steps(100, 0, 1, 0.8, 500).rows, 7);
    EXPECT_LT(run_steps(100, 95, 1, 0.6, 500).rows, 0.3);
    EXPECT_EQ(run_steps(100, 0, 1, 0.0, 500).rows, 0);
    EXPECT_GT(run_steps(100, 2, 16, 0.8, 500).rows, 30);
    EXPECT_LT(run_steps(100, 7, 16, 0.5, 500).rows, 3);
}

// A worker goes, and the one that takes its place is far away; or the other way round.
TEST(DraftBudgetTest, AnotherLineIsLearnedWithinAFewSteps) {
    const std::vector<double> gains{0.8, 0.64, 0.512, 0.41, 0.328, 0.262, 0.21, 0.168};
    DraftBudget budget;
    const auto run = [&](int steps, double plain, double row) {
        std::uint32_t rows = 0;
        for (int i = 0; i < steps; ++i) {
            rows = budget.choose(1, gains);
            const std::chrono::duration<double, std::milli> took(plain + row * rows);
            budget.record(1, rows, std::chrono::duration_cast<Duration>(took));
        }
        return rows;
    };
    EXPECT_LE(run(300, 24, 12), 2u);
    EXPECT_GE(run(20, 1000, 12), 6u);
    EXPECT_LE(run(20, 24, 12), 2u);
}

// Answers that run together end one after the other. Each number of sequences that was not seen yet
// begins with what is known of its neighbour.
TEST(DraftBudgetTest, FewerSequencesNeedNoPlainStepsFirst) {
    DraftBudget budget;
    const auto run = [&](std::uint32_t sequences, int steps, double plain, double row) {
        std::vector<double> gains;
        for (const double gain : {0.8, 0.64, 0.512, 0.41})
            gains.insert(gains.end(), sequences, gain);
        std::vector<std::uint32_t> rows;
        for (int i = 0; i < steps; ++i) {
            rows.push_back(budget.choose(sequences, gains));
            const std::chrono::duration<double, std::milli> took(plain + row * rows.back());
            budget.record(sequences, rows.back(), std::chrono::duration_cast<Duration>(took));
        }
        return rows;
    };
    EXPECT_EQ(run(16, 30, 1000, 1).front(), 0u);
    for (const std::uint32_t sequences : {12u, 6u, 3u, 1u})
        EXPECT_EQ(run(sequences, 4, 1000, 1), std::vector(4, 4 * sequences)) << sequences;

    // Once one number of sequences shows that the line is another one, nothing else holds either.
    run(16, 30, 10, 1);
    for (const std::uint32_t sequences : {12u, 6u, 3u, 1u})
        EXPECT_LT(run(sequences, 4, 10, 1).back(), 4 * sequences) << sequences;

    // What is known of 32 sequences shows little of 64 if rows are much more expensive there.
    EXPECT_EQ(run(32, 40, 1000, 1).back(), 128u);
    EXPECT_EQ(run(64, 60, 1000, 40).back(), 0u);
}

// A row costs as much as a sequence, and so no drafted row with a gain of 0.8 pays. That must also
// be known while the number of sequences falls within one kind, and where steps without drafts were
// slower before than they are now.
TEST(DraftBudgetTest, RowsDoNotPayWhileAnswersEndOrBecauseStepsWereSlowerOnce) {
    DraftBudget budget;
    const auto run = [&](std::uint32_t sequences, int steps, double ms, bool are_drafted) {
        std::vector<double> gains;
        for (const double gain : {0.8, 0.64, 0.512, 0.41})
            gains.insert(gains.end(), are_drafted ? sequences : 0, gain);
        std::uint32_t with_rows = 0;
        for (int i = 0; i < steps; ++i) {
            const std::uint32_t rows = budget.choose(sequences, gains);
            with_rows += rows > 0;
            const std::chrono::duration<double, std::milli> took(ms * (sequences + rows));
            budget.record(sequences, rows, std::chrono::duration_cast<Duration>(took));
        }
        return with_rows;
    };
    EXPECT_EQ(run(64, 30, 2.3, false), 0u);
    EXPECT_LE(run(64, 60, 1.85, true), 16u);
    for (std::uint32_t sequences = 63; sequences >= 33; --sequences)
        EXPECT_EQ(run(sequences, 1, 1.85, false), 0u);
    std::uint32_t with_rows = 0;
    for (std::uint32_t sequences = 63; sequences >= 17; --sequences)
        with_rows += run(sequences, 1, 1.85, true);
    EXPECT_LE(with_rows, 6u);
}

// A pause of the machine is no other machine.
TEST(DraftBudgetTest, SingleLateStepsChangeNothing) {
    const std::vector<double> gains{0.8, 0.64, 0.512, 0.41};
    DraftBudget budget;
    std::uint32_t without = 0;
    for (int i = 0; i < 600; ++i) {
        const std::uint32_t rows = budget.choose(1, gains);
        without += rows == 0;
        const bool is_late = i % 10 > 7;
        budget.record(1, rows, std::chrono::milliseconds(is_late ? 2000 : 100));
    }
    EXPECT_LT(without, 30u);
}

TEST(DraftBudgetTest, SpeedIsNeverFarBelowThatWithoutDraftsNorTheBest) {
    for (const std::uint32_t sequences : {1u, 4u, 64u})
        for (const double row : {0.0, 0.05, 0.3, 1.0})
            for (const double accept : {0.0, 0.3, 0.6, 0.9}) {
                SCOPED_TRACE(text(sequences, " ", row, " ", accept));
                const double plain_speed = sequences / 100.0;
                double best = plain_speed, tokens = sequences;
                for (std::uint32_t k = 1; k <= 8 * sequences; ++k) {
                    tokens += std::pow(accept, (k - 1) / sequences + 1);
                    best = std::max(best, tokens / (100 + k * row * 100 / sequences));
                }
                const Speed measured = run_steps(100, row * 100 / sequences, sequences, accept,
                                                 2000, 0.1);
                EXPECT_GT(measured.speed, 0.97 * plain_speed);
                EXPECT_GT(measured.speed, 0.93 * best);
            }
}

}  // namespace
}  // namespace moex
