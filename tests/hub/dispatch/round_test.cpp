// One round by itself: how its rows travel, and who is said to have answered them.
#include "hub/dispatch/round.h"

#include <gtest/gtest.h>

#include "protocol/half.h"

namespace moex {
namespace {

constexpr std::uint32_t hidden = 32, num_experts = 4, top_k = 2;

SwarmOptions deterministic_options() {
    SwarmOptions options;
    options.limits = {.hidden_size = hidden, .num_layers = 1, .num_experts = num_experts};
    options.rounding = {.deterministic = true, .wire_dtype = Dtype::f16};
    return options;
}

// Rows of one value each, all of them to the experts 1 and 2.
struct Rows {
    explicit Rows(const std::vector<float>& values) {
        for (const float value : values) {
            x.insert(x.end(), hidden, value);
            ids.insert(ids.end(), {1, 2});
            weights.insert(weights.end(), {0.5f, 0.25f});
        }
    }
    ExpertBatch batch() const {
        return {.num_tokens = static_cast<std::uint32_t>(x.size() / hidden),
                .hidden_size = hidden,
                .top_k = top_k,
                .x = x,
                .expert_ids = ids,
                .expert_weights = weights};
    }
    std::vector<float> x, weights;
    std::vector<std::uint16_t> ids;
};

Round opened(const Rows& rows) {
    Round round;
    EXPECT_TRUE(round.open(rows.batch(), deterministic_options(), 0, 1, {}).ok());
    return round;
}

// 0.123456 was read as 0.123474 alone, and as 0.123535 beside a row with 70,000 in it.
TEST(RoundTest, ARowTravelsTheSameWhateverItsNeighboursAre) {
    const Round alone = opened(Rows({0.123456f})),
                beside = opened(Rows({70000.0f, 0.123456f, 3.0f}));
    EXPECT_EQ((*alone.x)[0], half_to_float(float_to_half(0.123456f)));
    EXPECT_EQ((*beside.x)[hidden], (*alone.x)[0]);
    EXPECT_EQ((*beside.x)[0], 70144.0f);  // the nearest bf16
}

TEST(RoundTest, RowsBeyondF16TravelInGroupsOfTheirOwn) {
    Round round = opened(Rows({70000.0f, 0.5f, 3.0f, 1e6f}));
    ASSERT_EQ(round.pieces.size(), 4u);  // two experts in two blocks
    for (const bool wide : {false, true}) {
        Attempt attempt;
        attempt.pieces = wide ? std::vector<std::uint32_t>{2, 3} : std::vector<std::uint32_t>{0, 1};
        GroupDispatch group;
        round.fill_group(attempt, group);
        EXPECT_EQ(group.shape.dtype, wide ? Dtype::bf16 : Dtype::f16);
        EXPECT_EQ(attempt.tokens,
                  (wide ? std::vector<std::uint32_t>{0, 3} : std::vector<std::uint32_t>{1, 2}));
        EXPECT_EQ(group.x[0], wide ? 70144.0f : 0.5f);
        EXPECT_NE(round.pieces[attempt.pieces[0]].block, round.pieces[wide ? 0 : 2].block);
    }
}

TEST(RoundTest, EachPieceThatALiarAnsweredIsOpenAgain) {
    Round round = opened(Rows({1.0f, 70000.0f}));
    for (const std::uint32_t block : {0u, 1u}) {
        Attempt attempt;
        attempt.worker = 7;
        attempt.pieces = {2 * block, 2 * block + 1};
        GroupDispatch group;
        round.fill_group(attempt, group);
        EXPECT_EQ(round.accept(attempt, std::vector<float>(top_k * hidden, 1.0f), true), 2u);
    }
    EXPECT_EQ(round.pieces_left, 0u);
    EXPECT_EQ(round.reject_answers_of(8), 0u);
    EXPECT_EQ(round.reject_answers_of(7), 4u);
    EXPECT_EQ(round.pieces_left, 4u);
    for (const Piece& piece : round.pieces) EXPECT_TRUE(piece.is_open());
}

TEST(RoundTest, ARowNamesTheWorkersOfItsOwnPairsOnly) {
    Round round = opened(Rows({1.0f, 70000.0f}));
    for (const std::uint32_t block : {0u, 1u}) {
        Attempt attempt;
        attempt.worker = 7 + block;
        attempt.pieces = {2 * block, 2 * block + 1};
        GroupDispatch group;
        round.fill_group(attempt, group);
        EXPECT_EQ(round.accept(attempt, std::vector<float>(top_k * hidden, 1.0f), true), 2u);
    }
    std::vector<float> y;
    ExpertAnswer answer;
    round.finish(y, answer);
    EXPECT_EQ(answer.workers, (std::vector<std::uint64_t>{7, 8}));
    ASSERT_EQ(answer.row_workers.size(), 2u);

    for (const RowWorker& from : answer.row_workers) EXPECT_EQ(from.worker, 7u + from.row);
    EXPECT_EQ(y, std::vector<float>(2 * hidden, 2.0f));
}

}  // namespace
}  // namespace moex
