// The times of answered groups decide whether the GPU or the thread copies experts.
#include "web-worker/slots/transfer_choice.h"

#include <gtest/gtest.h>

#include <functional>

namespace moex {
namespace {

struct Groups {
    TransferChoice choice{true};
    double now_ms = 0;

    // Answers `count` groups, and returns the number of groups for which the GPU copied experts.
    // `took_ms` gives the time of a group for each copier.
    std::uint32_t run(std::uint32_t count, const std::function<double(bool by_gpu)>& took_ms) {
        std::uint32_t by_gpu = 0;
        for (std::uint32_t i = 0; i < count; ++i) {
            by_gpu += choice.by_gpu() ? 1 : 0;
            now_ms += took_ms(choice.by_gpu());
            choice.answered(now_ms, true);
        }
        return by_gpu;
    }
};

constexpr std::uint32_t trial = 2 * TransferChoice::pairs * TransferChoice::groups_a_window;

TEST(TransferChoiceTest, GpuCopiesIfItIsFaster) {
    Groups groups;
    const std::uint32_t count = 100'000;
    const std::uint32_t by_gpu = groups.run(count, [](bool gpu) { return gpu ? 1.0 : 3.0; });
    EXPECT_TRUE(groups.choice.by_gpu());
    EXPECT_GT(by_gpu, count - count / 100) << "trials are rare";
    EXPECT_LT(by_gpu, count) << "and made";
}

TEST(TransferChoiceTest, ThreadCopiesIfTheGpuIsShared) {
    Groups groups;
    groups.run(TransferChoice::pause_alone + trial + 1, [](bool gpu) { return gpu ? 2.0 : 1.0; });
    EXPECT_FALSE(groups.choice.by_gpu());
}

TEST(TransferChoiceTest, AFewGroupsThatTakeMuchLongerEndATrial) {
    Groups groups;
    groups.run(TransferChoice::pause_alone, [](bool) { return 1.0; });
    EXPECT_EQ(groups.run(trial, [](bool gpu) { return gpu ? 1.0 : 3.0; }),
              trial - TransferChoice::groups_to_settle - TransferChoice::groups_to_despair);
}

// During a trial, one of the first groups of the other copier arrives after a long pause without
// calls.
TEST(TransferChoiceTest, APauseEndsNoTrial) {
    Groups groups;
    groups.run(TransferChoice::pause_alone + TransferChoice::groups_a_window +
                   TransferChoice::groups_to_settle,
               [](bool gpu) { return gpu ? 2.0 : 1.0; });
    groups.now_ms += 3'600'000;
    groups.run(trial, [](bool gpu) { return gpu ? 2.0 : 1.0; });
    EXPECT_FALSE(groups.choice.by_gpu());
}

TEST(TransferChoiceTest, WrongFirstGuessIsCorrected) {
    Groups groups{.choice = TransferChoice(false)};
    EXPECT_EQ(groups.run(TransferChoice::pause_min, [](bool) { return 1.0; }), 0u);
    groups.run(trial, [](bool gpu) { return gpu ? 1.0 : 3.0; });
    EXPECT_TRUE(groups.choice.by_gpu());
}

TEST(TransferChoiceTest, ChoiceFollowsOtherProcesses) {
    Groups groups;
    groups.run(10'000, [](bool gpu) { return gpu ? 1.0 : 3.0; });
    EXPECT_TRUE(groups.choice.by_gpu());
    groups.run(20'000, [](bool gpu) { return gpu ? 5.0 : 3.0; });
    EXPECT_FALSE(groups.choice.by_gpu());
    groups.run(20'000, [](bool gpu) { return gpu ? 1.0 : 3.0; });
    EXPECT_TRUE(groups.choice.by_gpu());
}

TEST(TransferChoiceTest, AHiccupDecidesNothing) {
    Groups groups;
    std::uint32_t count = 0;
    groups.run(50'000, [&](bool) { return ++count % 500 == 0 ? 90.0 : 1.0; });
    EXPECT_TRUE(groups.choice.by_gpu());
}

TEST(TransferChoiceTest, GroupsWithoutCopiesAreNotTimed) {
    Groups groups;
    groups.run(TransferChoice::pause_alone, [](bool) { return 1.0; });
    groups.run(TransferChoice::groups_a_window, [](bool) { return 1.0; });
    EXPECT_FALSE(groups.choice.by_gpu()) << "the window of the other copier";
    for (int i = 0; i < 100'000; ++i) groups.choice.answered(groups.now_ms += 1, false);
    EXPECT_FALSE(groups.choice.by_gpu()) << "the window continues";
    groups.run(trial, [](bool gpu) { return gpu ? 1.0 : 3.0; });
    EXPECT_TRUE(groups.choice.by_gpu());
}

TEST(TransferChoiceTest, TimeWithoutCallsIsNotCounted) {
    Groups groups;
    groups.run(TransferChoice::pause_alone + TransferChoice::groups_a_window + 10,
               [](bool gpu) { return gpu ? 1.0 : 1.1; });
    groups.now_ms += 3'600'000;
    groups.run(trial, [](bool gpu) { return gpu ? 1.0 : 1.1; });
    EXPECT_TRUE(groups.choice.by_gpu());
}

}  // namespace
}  // namespace moex
