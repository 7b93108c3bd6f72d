// Which hints are worth their way, told by what groups ask.
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
    EXPECT_TRUE(judge.worth({3, 9}, true)) << "of which no hint tells";
    EXPECT_TRUE(judge.worth({4, 8}, true)) << "nor of this layer";
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

TEST(HintJudgeTest, TheNewestWordOnALayerCountsAndOnlyForItsNextGroup) {
    Judged judge;
    judge.hint(1, {5});
    judge.hint(1, {6});
    judge.ask(2, {6});
    EXPECT_DOUBLE_EQ(judge.right(0), 1) << "another layer's";
    judge.ask(1, {5});
    EXPECT_DOUBLE_EQ(judge.right(0), 1 - HintJudge::newest_share);
    judge.ask(1, {5});
    EXPECT_DOUBLE_EQ(judge.right(0), 1 - HintJudge::newest_share) << "told once";
}

TEST(HintJudgeTest, LateRanksCountAsOne) {
    Judged judge;
    std::vector<std::uint16_t> experts;
    for (std::uint16_t expert = 0; expert < HintJudge::num_ranks + 3; ++expert)
        experts.push_back(expert);
    judge.hint(0, experts);
    judge.ask(0, {HintJudge::num_ranks});  // one of the last four
    EXPECT_DOUBLE_EQ(judge.right(0), 1 - HintJudge::newest_share);
    EXPECT_DOUBLE_EQ(judge.right(HintJudge::num_ranks - 1), 1 - HintJudge::newest_share * 0.75);
}

// A hint is right every second time; who leaves for it is asked again each time. Between, another
// layer asks for three.
void leave_and_be_asked(Judged& judge, std::uint32_t num_slots) {
    for (std::uint16_t turn = 0; turn < 200; ++turn) {
        judge.hint(0, {7});
        judge.left({0, 1});
        judge.ask(1, {1, 2, 3});
        judge.ask(0, {1, static_cast<std::uint16_t>(turn % 2 == 0 ? 7 : 2)}, num_slots);
    }
    judge.hint(0, {7});
}

TEST(HintJudgeTest, WhoIsAskedMoreOftenThanAHintIsRightKeepsItsSlot) {
    Judged judge;
    leave_and_be_asked(judge, many_slots);
    EXPECT_GT(judge.missed(), 0.9);
    EXPECT_FALSE(judge.worth({0, 7}, true));
    EXPECT_TRUE(judge.worth({0, 7}, false)) << "where a slot is free";

    int groups = 0;
    for (; !judge.worth({0, 7}, true); judge.ask(1, {1}))
        ASSERT_LT(++groups, 2000) << "it is tried again one day";
    EXPECT_GT(groups, 100);
}

TEST(HintJudgeTest, WhereEverybodyLeavesBeforeTheyAreAskedAgainNobodyIsMissed) {
    Judged judge;
    leave_and_be_asked(judge, 4);  // of five that both layers ask
    EXPECT_DOUBLE_EQ(judge.missed(), 0);
    EXPECT_TRUE(judge.worth({0, 7}, true));
}

}  // namespace
}  // namespace moex
