// The judge decides from the requests of groups which hints are worth a copy.
#include "web-worker/slots/hint_judge.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

constexpr std::uint32_t many_slots = 100;

std::vector<Unit> units_of(std::uint16_t layer, std::vector<std::uint16_t> experts) {
    std::vector<Unit> units;
    for (const std::uint16_t expert : experts) units.push_back({layer, expert});
    return units;
}

struct Judged : HintJudge {
    void hint(std::uint16_t layer, const std::vector<std::uint16_t>& experts) {
        hinted(units_of(layer, experts));
    }
    void ask(std::uint16_t layer, const std::vector<std::uint16_t>& experts,
             std::uint32_t num_slots = many_slots) {
        asked(units_of(layer, experts), num_slots);
    }
};

TEST(HintJudgeTest, ARankIsBelievedUntilItWasWrongForAWhile) {
    Judged judge;
    judge.hint(3, {7, 8});
    EXPECT_TRUE(judge.worth({3, 7}, true));
    EXPECT_TRUE(judge.worth({3, 8}, true));

    for (int turn = 0; turn < 100; ++turn) {
        judge.hint(3, {7, 8});
        judge.ask(3, {7, 20});
    }
    judge.hint(3, {7, 8});
    EXPECT_TRUE(judge.worth({3, 7}, true));
    EXPECT_FALSE(judge.worth({3, 8}, true));
    EXPECT_FALSE(judge.worth({3, 8}, false)) << "nor is an empty slot worth its copy";
    EXPECT_TRUE(judge.worth({3, 9}, true)) << "no hint predicts it";
    EXPECT_TRUE(judge.worth({4, 8}, true)) << "nor one of this layer";
    EXPECT_DOUBLE_EQ(judge.right(0), 1);

    judge.certain({3, 8});
    EXPECT_TRUE(judge.worth({3, 8}, true));

    for (int turn = 0; turn < 10; ++turn) {
        judge.hint(3, {7, 8});
        judge.ask(3, {7, 8});
    }
    judge.hint(3, {7, 8});
    EXPECT_TRUE(judge.worth({3, 8}, true)) << "it is right again, though it was not brought";
}

TEST(HintJudgeTest, NewestHintCountsForTheNextGroupOnly) {
    Judged judge;
    judge.hint(1, {5});
    judge.hint(1, {6});
    judge.ask(2, {6});
    EXPECT_DOUBLE_EQ(judge.right(0), 1) << "a group of another layer";
    judge.ask(1, {5});
    EXPECT_DOUBLE_EQ(judge.right(0), 1 - HintJudge::newest_share);
    judge.ask(1, {5});
    EXPECT_DOUBLE_EQ(judge.right(0), 1 - HintJudge::newest_share) << "a hint counts once";
}

TEST(HintJudgeTest, LateRanksCountAsOne) {
    Judged judge;
    std::vector<std::uint16_t> experts;
    for (std::uint16_t expert = 0; expert < HintJudge::num_ranks + 3; ++expert)
        experts.push_back(expert);
    judge.hint(0, experts);
    judge.ask(0, {HintJudge::num_ranks});  // requests one of the last four predicted experts
    EXPECT_DOUBLE_EQ(judge.right(0), 1 - HintJudge::newest_share);
    EXPECT_DOUBLE_EQ(judge.right(HintJudge::num_ranks - 1), 1 - HintJudge::newest_share * 0.75);
}

// A hint is right every second time. The expert that is evicted for it is requested again each
// time. Between the groups of this layer, another layer requests three experts.
void leave_and_be_asked(Judged& judge, std::uint32_t num_slots) {
    for (std::uint16_t turn = 0; turn < 200; ++turn) {
        judge.hint(0, {7});
        judge.left({0, 1});
        judge.ask(1, {1, 2, 3});
        judge.ask(0, {1, static_cast<std::uint16_t>(turn % 2 == 0 ? 7 : 2)}, num_slots);
    }
    judge.hint(0, {7});
}

TEST(HintJudgeTest, OftenRequestedExpertIsNotEvictedForAHint) {
    Judged judge;
    leave_and_be_asked(judge, many_slots);
    EXPECT_GT(judge.missed(), 0.9);
    EXPECT_FALSE(judge.worth({0, 7}, true));
    EXPECT_TRUE(judge.worth({0, 7}, false)) << "where a slot is free";

    int groups = 0;
    for (; !judge.worth({0, 7}, true); judge.ask(1, {1}))
        ASSERT_LT(++groups, 2000) << "it is tried again later";
    EXPECT_GT(groups, 100);
}

TEST(HintJudgeTest, ExpertsWithoutALastingSlotAreNotMissed) {
    Judged judge;
    // Between the layer's groups, both layers together request five experts.
    leave_and_be_asked(judge, 4);
    EXPECT_DOUBLE_EQ(judge.missed(), 0);
    EXPECT_TRUE(judge.worth({0, 7}, true));
}

}  // namespace
}  // namespace moex
